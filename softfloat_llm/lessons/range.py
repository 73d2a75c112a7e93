"""Range: the largest and the smallest value of a format, and a key and value cache in eight bits."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="range",
    title="Too large and too small",
    steps=(
        Predict(
            """
            The eight bits of e4m3fn hold values up to 448; the smallest above zero is 2^-9 = 0.001953125. A key and
            value cache stores 600 and 0.0004 in it, without a scale, and what is too large becomes the largest value.
            What is read back? (Two numbers.)
            """,
            answer="(large, small)",
        ),
        Text(
            """
            Rounding errors are relative, and small everywhere. The ends of the range are another thing: beyond the
            largest value comes an infinity (or NaN, or the largest value itself: a format's makers decide), below the
            smallest comes zero.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            large, small = (sf.round_to(x, "e4m3fn", overflow="saturate") for x in (600, 0.0004))
            large, small
            sf.round_to(600, "e4m3fn")
            scale = 600 / 448
            [float(sf.round_to(x / scale, "e4m3fn")) * scale for x in (600, 3.3, 0.0004)]
            """
        ),
        Text(
            """
            With a scale for the tensor the largest comes back whole, at the price of the smallest. f16 has the same
            trouble at 65504, and an intermediate sum can meet it though the final one would fit:
            """
        ),
        Python(
            """
            hot, cool = [60000, 60000, -60000], [60000, -60000, 60000]
            overflown, fitting = (sf.sum(terms, "storage=f16,acc=f16") for terms in (hot, cool))
            overflown, fitting
            sf.round_to(65519, "f16"), sf.round_to(65520, "f16"), sf.round_to(65520, "bf16")
            """
        ),
        Picture('number_line("440", ["e4m3fn"], marks={"464": 464})'),
        Command("softfloat-llm explain dot 60000,60000,-60000 1,1,1 --at storage=f16,acc=f16"),
        Command("softfloat-llm ranges -q"),
        Answer(
            """
            600 comes back as {large} and 0.0004 as {small}. Without saturation 600 would be NaN, as e4m3fn has no
            infinity. The f16 sum gives {overflown} in one order of its terms and {fitting} in another.
            """
        ),
        Next(
            "The lesson `double-rounding`: two roundings are not one.",
            run=(
                "softfloat-llm ranges --kv-scales e4m3fn",
                "simulate 'The cup is' --kv e4m3fn --against bf16",
                "softfloat-llm explain round 65519.99 --to f16",
            ),
        ),
    ),
)
