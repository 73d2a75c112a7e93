"""Order: floating-point addition is not associative, so the order of a sum is part of its result."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="order",
    title="The order of a sum is part of its result",
    steps=(
        Predict(
            """
            The terms are 2^24 = 16777216 and seven ones, in f32, which has all whole numbers up to 2^24, and from
            there to 2^25 the even ones. Exactly they add up to 16777223. One loop adds from left to right. Another
            keeps two running sums, of the even and of the odd positions (counted from 0), and adds these at the end,
            as vector code does. What do they give? (Two numbers.)
            """,
            answer="(in_turn, two_lanes)",
        ),
        Text(
            """
            Each addition rounds, so (a + b) + c and a + (b + c) may differ. No one has promised you an order: a
            library chooses it from the shape, the machine and the number of threads. Both results are right, each for
            its own order. Here an order is a word, and can be drawn.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            terms = [2.0**24] + [1.0] * 7
            words = ("seq", "lanes:2", "lanes:4", "reverse", "pairwise")
            sums = [sf.sum(terms, f"storage=f32,acc=f32,order={word}") for word in words]
            for word, total in zip(words, sums):
                print(f"{word:8} {total:.0f}   {sf.Order(word).tree(8)}")
            in_turn, two_lanes, four_lanes, backwards = sums[:4]
            """
        ),
        Picture('summation_tree("lanes:2", 8)'),
        Command("softfloat-llm explain sum 2^24 1 1 1 1 1 1 1 --at storage=f32,acc=f32,order=lanes:2"),
        Answer(
            """
            From left to right every 1 is lost to a tie: {in_turn}. With two lanes the four ones at odd positions add
            up to 4 by themselves, and 4 is large enough: {two_lanes}. Four lanes save six ones: {four_lanes}. From
            the small end all seven meet first, and only the last addition rounds, a tie: {backwards}.
            """
        ),
        Next(
            "The lesson `batch`: why the order changes when nobody asked for it.",
            run=(
                "softfloat-llm bound --dot 256,1,1 1,1,1 --storage bf16 --acc bf16",
                "simulate --storage bf16 --order lanes:8 --against bf16",
            ),
        ),
    ),
)
