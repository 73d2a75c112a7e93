"""f16 accumulators: a running sum that stops growing, and what that costs a matrix product."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="accumulator",
    title="A sum that stops growing: f16 accumulators",
    steps=(
        Predict(
            """
            f16 has 11 bits of significand: all whole numbers up to 2048, then every second one. A running sum in f16
            starts at 0, and 1 is added 4096 times. Where does it end?
            """,
            answer="stuck",
        ),
        Text(
            """
            Some engines add the products of an f16 matrix product in f16, as candle does on Arm CPUs: it is faster
            where the hardware has it. Every single addition is as right as f16 allows, half an ulp. The ulp grows
            with the sum, and the terms do not.
            """
        ),
        Python(
            """
            import softfloat_llm as sf
            ones = [1.0] * 4096
            stuck = sf.sum(ones, "storage=f16,acc=f16,order=seq")
            in_lanes = sf.sum(ones, "storage=f16,acc=f16,order=lanes:8")
            in_f32 = sf.sum(ones, "storage=f16,acc=f32,output=f16")
            stuck, in_lanes, in_f32
            """
        ),
        Text(
            """
            Real terms are no ones. Here is one element of a product with 1536 terms, as long as the sums of a small
            model's mlp, once with an f16 accumulator and once with an f32 one:
            """
        ),
        Python(
            """
            import numpy as np
            from softfloat_llm.analysis.explain_sum import explain_dot
            draw = np.random.Generator(np.random.PCG64(7))
            a, b = (sf.round_to(draw.standard_normal(1536), "f16") for _ in range(2))
            paths = [explain_dot(a, b, f"storage=f16,acc={acc},output=f32") for acc in ("f16", "f32")]
            errors = [abs(float(path.error)) for path in paths]
            round(errors[0], 4), errors[0] > 100 * errors[1]
            """
        ),
        Picture('accumulation_path(paths, what="a dot product of 1536 terms")'),
        Command("softfloat-llm explain sum 2047 1 1 1 --at storage=f16,acc=f16"),
        Answer(
            """
            It ends at {stuck}: 2048 + 1 = 2049 lies half way between 2048 and 2050, and the tie goes to 2048, each
            time again. Eight lanes of 512 ones each stay below 2048, and give {in_lanes}; so does an f32 accumulator,
            {in_f32}. The order of the sum may save an accumulator that is too small, and must not be relied upon.
            """
        ),
        Next(
            "The lesson `order`: the same terms in another order.",
            run=("simulate --storage f16 --acc f16", "softfloat-llm recipes candle-f16-cpu-neon"),
        ),
    ),
)
