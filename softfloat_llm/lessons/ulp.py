"""The ulp: the distance between neighbours, which doubles at every power of two."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="ulp",
    title="An ulp is the distance to the next value",
    steps=(
        Predict(
            """
            bf16 has 8 bits of significand. Between 1 and 2 its values lie 1/128 apart, between 2 and 4 they lie 1/64
            apart, and so on: twice as far after each power of two. How far apart do they lie around 1000?
            """,
            answer="around_1000",
        ),
        Text(
            """
            That distance is called an ulp, a unit in the last place. It belongs to a format and to a place on the
            number line. An error without its ulp says little: 0.1 is nothing at 1000 and a catastrophe at 0.01.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            around_1000 = sf.ulp(1000, "bf16")
            for x in (1.5, 22.25, 256, 1000, 60000):
                print(x, *(sf.ulp(x, fmt) for fmt in ("bf16", "f16", "f32")))
            """
        ),
        Picture('number_line("1000", ["bf16", "f16"])'),
        Text(
            """
            Rounding to nearest is wrong by half an ulp at most. Divided by the number itself that is always nearly
            the same: at most 2^-8 in bf16, 2^-11 in f16, 2^-24 in f32, as long as the number is in the range of the
            format. So a format has a fixed number of digits, and not a fixed distance.
            """
        ),
        Command("softfloat-llm explain round 1001.5 --to bf16 -q"),
        Python(
            """
            from fractions import Fraction
            worst = max(abs(Fraction(sf.round_to(n, "bf16")) - n) / n for n in range(512, 1024))
            worst, worst <= Fraction(1, 2**8)
            """
        ),
        Answer(
            """
            1000 lies in [512, 1024), where the values have 7 bits behind the leading 512: 512 / 128 = {around_1000}.
            Every whole number from 512 to 1023 that 4 does not divide is therefore no value of bf16.
            """
        ),
        Next(
            "The lesson `ties`: what happens half way between two values.",
            run=("softfloat-llm formats", "softfloat-llm margins 'The cup is' --format bf16"),
        ),
    ),
)
