"""Batch and shape: the same row gives other bits beside other rows, because the shape chooses the order."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="batch",
    title="The shape chooses the order",
    steps=(
        Predict(
            """
            An engine multiplies one row by a matrix with one kernel (eight running sums), and several rows with
            another (one running sum), as many engines do. You run a prompt and let it choose four tokens, one at a
            time with a cache. Then you feed prompt and tokens at once. Same weights, same formats, same tokens. Are
            all logits the same bits? (yes or no)
            """,
            answer="'no' if moved else 'yes'",
        ),
        Text(
            """
            A server that fills its batches with other people's requests, or that decodes with a cache, changes shapes
            all the time. Nothing random happens, no thread races: each shape has its kernel, and each kernel its
            order. In a recipe that is a condition on M, the number of rows.
            """
        ),
        Python(
            """
            import numpy as np
            import softfloat_llm as sf
            engine = sf.Recipe("f32", at={"linear.order if M == 1": "lanes:8"})
            stepwise = sf.simulate("The cup is", recipe=engine, steps=4)
            at_once = sf.simulate(tokens=stepwise.tokens[:-1], recipe=engine)
            first, second = stepwise["logits"], at_once["logits"]
            differing = [int(np.count_nonzero(a != b)) for a, b in zip(first, second)]
            moved, of = max(differing), first.shape[1]
            differing, f"{float(abs(first - second).max()):.2g}"
            """
        ),
        Text(
            """
            The rows of the prompt are the same: they were several rows both times. The decoded ones are not. Where
            one order serves every shape, nothing moves:
            """
        ),
        Python(
            """
            plain_steps = sf.simulate("The cup is", recipe="f32", steps=4)
            plain_once = sf.simulate(tokens=plain_steps.tokens[:-1], recipe="f32")
            same = bool((plain_steps["logits"] == plain_once["logits"]).all())
            same
            """
        ),
        Picture('summation_tree("lanes:8", 24)'),
        Command("softfloat-llm explain sum 2^24 1 1 1 1 1 1 1 1 --at storage=f32,acc=f32,order=seq -q"),
        Command("softfloat-llm explain sum 2^24 1 1 1 1 1 1 1 1 --at storage=f32,acc=f32,order=lanes:8 -q"),
        Answer(
            """
            No: up to {moved} of the {of} logits of a row differ. The differences are a few ulps of f32. In a model of
            bf16 each one that crosses a midpoint becomes a whole ulp of bf16, and a close choice between two tokens
            can turn on it. With an order that does not depend on the shape all bits are the same: {same}.
            """
        ),
        Next(
            "The lesson `margins`: which choices are close.",
            run=("softfloat-llm recipes vllm-bf16-cuda-batch-invariant", "softfloat-llm bound 'The cup is'"),
        ),
    ),
)
