"""Islands of f32: why norms and softmax are not computed in the model's own format."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="islands",
    title="Islands of f32 in a model of sixteen bits",
    steps=(
        Predict(
            """
            RMSNorm divides a row by the root of the mean of its squares, sqrt(mean(x^2)). The row is 300, 300, 300,
            300, all weights are 1, so exactly each element becomes 1. Now squares, mean and root are all kept in f16,
            whose largest value is 65504. What does each element become?
            """,
            answer="in_f16",
        ),
        Python(
            """
            import softfloat_llm as sf
            square = sf.mul(300, 300, fmt="f16")
            mean = sf.div(sf.sum([square] * 4, "storage=f16,acc=f16"), 4, fmt="f16")
            in_f16 = sf.div(300, sf.sqrt(mean, fmt="f16"), fmt="f16")
            square, mean, in_f16
            """
        ),
        Text(
            """
            No NaN tells of it: a row of plain zeros goes on into the model. In bf16, which has the range of f32,
            squares fit, but sums stop growing. A softmax over 512 equal scores adds 512 times exp(0) = 1:
            """
        ),
        Python(
            """
            ones = [1.0] * 512
            total = sf.sum(ones, "storage=bf16,acc=bf16")
            share = sf.div(1, total, fmt="bf16")
            adds_up_to = 512 * share
            total, share, adds_up_to
            """
        ),
        Text(
            """
            So engines widen at these places, and narrow again behind them: islands of f32. Here, too, they stay
            unless you ask: `--at norm.acc=f16`, `--at attn.softmax.acc=bf16`. Where the built-in model changes in
            bf16 when the island of the norms sinks, by layer and site:
            """
        ),
        Python(
            """
            island = sf.simulate(recipe="bf16", taps=("*.out",))
            recipe = sf.Recipe("bf16", at=["norm.acc=bf16"])
            sunk = sf.simulate(recipe=recipe, teacher=island, taps=("*.out",))
            found = sf.compare(sunk, island)
            """
        ),
        Picture("heat_map(found)"),
        Command("simulate --storage f16 --at norm.acc=f16 -q"),
        Answer(
            """
            {in_f16}. 300 squared is 90000, beyond 65504, so infinity, and so are mean and root; 300 divided by
            infinity is 0. The softmax in bf16 sticks at {total}: each of the 512 probabilities becomes {share}, and
            they add up to {adds_up_to}.
            """
        ),
        Next(
            "The lesson `range`: overflow elsewhere, and the cache in eight bits.",
            run=("softfloat-llm taps 'layers.0.*'", "softfloat-llm ranges", "softfloat-llm recipes bf16"),
        ),
    ),
)
