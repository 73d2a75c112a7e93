"""Ties: a number half way between two values goes to the even one."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="ties",
    title="Half way: ties go to the even value",
    steps=(
        Predict(
            """
            From 256 to 512 the values of bf16 are 256, 258, 260 and so on. 257 and 259 lie exactly half way between
            two of them. What do 257 and 259 round to? (Two numbers.)
            """,
            answer="(sf.round_to(257, 'bf16'), sf.round_to(259, 'bf16'))",
        ),
        Text(
            """
            With so few bits a number meets a midpoint all the time: each odd whole number from 256 to 512 is one.
            IEEE 754 lets the value win whose last bit is 0, the even one. Neighbours take turns in being even, so
            half of all ties go up and half go down.
            """
        ),
        Command("softfloat-llm explain round 259 --to bf16"),
        Picture('number_line("259", ["bf16"], marks={"257": 257})'),
        Text("Always away from zero, the rule learned at school, pushes a long sum to one side:"),
        Python(
            """
            import softfloat_llm as sf
            midpoints = range(257, 512, 2)
            even = sum(sf.round_to(n, "bf16") - n for n in midpoints)
            away = sum(sf.round_to(n, "bf16", mode="ties_to_away") - n for n in midpoints)
            first, second = sf.round_to(257, "bf16"), sf.round_to(259, "bf16")
            even, away
            """
        ),
        Answer(
            """
            257 goes down to {first} and 259 goes up to {second}. Over all 128 midpoints from 257 to 511 the errors of
            ties to even add up to {even}, those of ties away to {away}.
            """
        ),
        Next(
            "The lesson `stages`: the same rounding, at three places of one sum.",
            run=("softfloat-llm explain round 257 --to bf16 --mode ties_to_away", "softfloat-llm explain sum 256 1 1"),
        ),
    ),
)
