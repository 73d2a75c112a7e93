"""Double rounding: through a format in between, a number may arrive at another value."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="double-rounding",
    title="Two roundings are not one",
    steps=(
        Predict(
            """
            From 1 to 2 the values of bf16 are 1, 1 + 2^-7 = 1.0078125 and so on; those of f16 lie 2^-10 apart. Take x
            = 1 + 2^-8 + 2^-12, a little more than half way to the second. What is x in bf16, directly, and what if it
            is rounded to f16 first and then to bf16? (Two numbers.)
            """,
            answer="(once, twice)",
        ),
        Text(
            """
            A value that is stored in a second format on its way is rounded twice. Usually nothing comes of it. But
            the first rounding can put a number upon a midpoint where it never was, and then the tie rule decides.
            """
        ),
        Python(
            """
            import numpy as np
            import softfloat_llm as sf
            x = 1 + 2**-8 + 2**-12
            first = sf.round_to(x, "f16")
            once, twice = sf.round_to(x, "bf16"), sf.round_to(first, "bf16")
            x, first, once, twice
            """
        ),
        Picture('number_line("1 + 2^-8 + 2^-12", ["bf16", "f16"])'),
        Command("softfloat-llm explain round 1+2^-8+2^-12 --to bf16"),
        Text(
            """
            There is a cure. Rounding to odd in the first step (cut the bits, and set the last one if anything was
            cut) never arrives at a midpoint by accident, and with two bits to spare the second rounding is right.
            This program rounds its exact sums so.
            """
        ),
        Python(
            """
            cured = sf.round_to(sf.round_to(x, "f16", mode="to_odd"), "bf16")
            cured
            grid = 1 + np.arange(2**14) / 2**14
            through = {mode: sf.round_to(grid, "f16", mode=mode) for mode in ("ties_to_even", "to_odd")}
            direct = sf.round_to(grid, "bf16")
            wrong, left = (
                int(np.count_nonzero(sf.round_to(values, "bf16") != direct)) for values in through.values()
            )
            wrong, left
            """
        ),
        Answer(
            """
            Directly x is {once}. In f16 it is {first}, exactly half way, and the tie goes to the even {twice}.
            Through to_odd it is {cured} again. Of the 16384 numbers 1 + n/2^14, {wrong} go astray by way of f16, and
            {left} by way of to_odd.
            """
        ),
        Next(
            "The lesson `stochastic`: a rounding that is right on average.",
            run=(
                "softfloat-llm explain round 1+2^-8+2^-30 --to bf16",
                "softfloat-llm explain round 1+2^-8+2^-12 --to f16",
            ),
        ),
    ),
)
