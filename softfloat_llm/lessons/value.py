"""What a value is: a sign, a significand of p bits, a power of two."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="value",
    title="What a value is",
    steps=(
        Predict(
            """
            A value of bf16 is a whole number of at most 8 bits times a power of two. So between 16 and 32 the values
            are 16, 16 + 1/8, 16 + 2/8 and so on. A model computed the logit 22.277479. What is it in bf16?
            """,
            answer="stored",
        ),
        Text(
            """
            A floating-point format is a set of numbers, and every number of the set is exact: there is nothing vague
            about 22.25. What loses something is the step that brings a real number there, the rounding. This program
            has one word for it, `round_to`, and wherever a bit is lost that word stands.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            stored = sf.round_to(22.277479, "bf16")
            stored
            f"{int(sf.encode(stored, 'bf16')):016b}"
            """
        ),
        Text(
            """
            Sixteen bits: one for the sign; eight for the exponent, 131, less the bias of 127; seven for what stands
            behind the point of the significand, whose leading 1 is not stored. Put together with exact fractions they
            are the value again:
            """
        ),
        Python(
            """
            from fractions import Fraction
            code = int(sf.encode(stored, "bf16"))
            exponent, trailing = (code >> 7 & 0xFF) - 127, code & 0x7F
            (1 + Fraction(trailing, 2**7)) * 2**exponent
            """
        ),
        Command("softfloat-llm explain round 22.277479 --to bf16"),
        Picture('number_line("22.277479", ["bf16", "f16"])'),
        Answer(
            """
            22.277479 lies between 22.25 and 22.375, and nearer to the lower one: in bf16 it is {stored}. The rounding
            moved it by less than half of 0.125. In f16, which has 11 bits, the values there lie eight times closer.
            """
        ),
        Next(
            "The lesson `ulp`: how far apart the values lie elsewhere.",
            run=("softfloat-llm formats bf16", "softfloat-llm explain round 0.1 --to e4m3fn"),
        ),
    ),
)
