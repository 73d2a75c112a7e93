"""Storage, accumulation, output: three formats of one sum, of which a dtype names two."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="stages",
    title="Storage, accumulation, output",
    steps=(
        Predict(
            """
            Four numbers are stored in bf16: 256, 1, 1, 1. They are added from left to right. Once the running sum is
            kept in bf16; once it is kept in f32 and the result is rounded to bf16. What comes out? (Two numbers. From
            256 on, bf16 has the even whole numbers only, and ties go to the multiple of 4.)
            """,
            answer="(in_bf16, in_f32)",
        ),
        Text(
            """
            "The model runs in bf16" says in which format the numbers lie, and usually in which format results are
            written back. It does not say where the sum is kept meanwhile: the accumulator. A matrix product of a
            model adds hundreds or thousands of terms, and each addition may lose something there.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            terms = [256, 1, 1, 1]
            in_bf16 = sf.sum(terms, "storage=bf16,acc=bf16,output=bf16")
            in_f32 = sf.sum(terms, "storage=bf16,acc=f32,output=bf16")
            not_rounded = sf.sum(terms, "storage=bf16,acc=f32,output=f32")
            in_bf16, in_f32, not_rounded
            """
        ),
        Command("softfloat-llm explain sum 256 1 1 1 --at acc=bf16"),
        Command("softfloat-llm explain sum 256 1 1 1 --at acc=f32"),
        Python(
            """
            from softfloat_llm.analysis.explain_sum import explain_sum
            sums = [explain_sum(terms, f"storage=bf16,acc={acc}") for acc in ("bf16", "f32")]
            """
        ),
        Picture('accumulation_path(sums, what="256 + 1 + 1 + 1")'),
        Answer(
            """
            The exact sum is {not_rounded}. In a bf16 accumulator each 257 ties back to 256, three times: {in_bf16}.
            The f32 accumulator holds {not_rounded}, and one rounding on the way out makes it {in_f32}. Both are
            wrong, but the first loses at every step, and the second only once.
            """
        ),
        Next(
            "The lesson `accumulator`: how far this goes in a long sum.",
            run=("simulate 'The cup is' --storage bf16 --acc f16", "softfloat-llm budget 'The cup is'"),
        ),
    ),
)
