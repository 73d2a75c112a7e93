"""Block scales: elements of four bits that share a scale, and what a single large one does to the others."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="blocks",
    title="Four bits and a shared scale",
    steps=(
        Predict(
            """
            In MXFP4 thirty-two elements share one scale, a power of two. Each element is one of 0, 0.5, 1, 1.5, 2, 3,
            4, 6 and their negatives. The scale is the power of two that brings the largest magnitude into [4, 8). A
            block holds one 100 and thirty-one ones. What do 100 and 1 come back as? (Two numbers.)
            """,
            answer="(outlier, other)",
        ),
        Python(
            """
            from softfloat_llm.numerics.scaled import quantise
            block = [100.0] + [1.0] * 31
            stored = quantise(block, "mxfp4")
            scale = float(stored.parts.scales.item())
            outlier, other = map(float, stored.decoded[:2])
            scale, outlier, other
            """
        ),
        Text(
            """
            A scale lets few bits reach far, as long as the numbers of a block are alike. One outlier takes the scale
            for itself. Smaller blocks, elements of more bits, or a finer scale help; so does moving the outlier away.
            """
        ),
        Picture('number_line("6.25", ["e2m1fn"], marks={"1/16": 0.0625})'),
        Python(
            """
            for name in ("mxfp4", "nvfp4", "mxfp8-e4m3", "q8_0", "int8"):
                decoded = quantise(block, name).decoded
                print(f"{name:10}", *(float(decoded[place]) for place in (0, 1, 31)))
            without = float(quantise([1.0] * 32, "mxfp4").decoded[0])
            """
        ),
        Command("softfloat-llm explain round 6.25 --to e2m1fn"),
        Answer(
            """
            The scale is {scale}, since 100 / 16 = 6.25 lies in [4, 8). 6.25 becomes 6, so 100 comes back as
            {outlier}; 1/16 becomes 0, so every 1 comes back as {other}. Without the outlier each 1 would have come
            back as {without}.
            """
        ),
        Next(
            "Back to the lesson `value`, or on to a model of yours.",
            run=("simulate --storage e4m3fn", "softfloat-llm formats e2m1fn"),
        ),
    ),
)
