"""Stochastic rounding: up with the probability of the fraction, so that small terms are not lost on average."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="stochastic",
    title="A rounding that is right on average",
    steps=(
        Predict(
            """
            Stochastic rounding goes up or down by chance, more likely to the nearer neighbour, so that the mean of
            many roundings is the number itself. 256.5 lies between the bf16 values 256 and 258. With what probability
            does it become 258? (A fraction or a decimal.)
            """,
            answer="probability",
        ),
        Python(
            """
            from fractions import Fraction
            import numpy as np
            import softfloat_llm as sf
            below, above = 256, 258
            probability = (Fraction(256.5) - below) / (above - below)
            probability
            rounded = sf.round_to(np.full(4096, 256.5), "bf16", mode="stochastic:16:1")
            ups = int(np.count_nonzero(rounded == above))
            ups, 4096 * probability
            """
        ),
        Text(
            """
            The chance here is no secret: each element has its own random word, made of a seed (the 1 above) and its
            place. The same seed gives the same bits on every machine.
            """
        ),
        Picture('number_line("256.5", ["bf16"])'),
        Text(
            """
            What it is for: an update that is smaller than half an ulp is lost every time by rounding to nearest, and
            kept on average by chance. Add 0.5 to 256 in bf16, 64 times; exactly that is 288.
            """
        ),
        Python(
            """
            terms, at = [256] + [0.5] * 64, "storage=bf16,acc=bf16"
            nearest = sf.sum(terms, at)
            chances = [sf.sum(terms, f"{at},rounding=stochastic:16:{seed}") for seed in range(16)]
            mean = Fraction(sum(map(Fraction, chances)), len(chances))
            nearest, min(chances), max(chances)
            """
        ),
        Command("softfloat-llm explain sum 256 0.5 0.5 0.5"),
        Answer(
            """
            {probability}: 256.5 lies a quarter of the way. Of 4096 tries {ups} went up. Rounding to nearest leaves
            the sum at {nearest}; sixteen seeds of stochastic rounding give {mean} on average, where 288 is exact. One
            of them alone may be far off: it is unbiased, not accurate.
            """
        ),
        Next(
            "The lesson `blocks`: numbers of four bits that share a scale.",
            run=("simulate --storage bf16 --acc bf16 --rounding stochastic:16:1",),
        ),
    ),
)
