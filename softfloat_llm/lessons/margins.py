"""Margins: when a rounding can change the token, and which token it then is."""

from softfloat_llm.lessons.lesson import Answer, Command, Lesson, Next, Picture, Predict, Python, Text

LESSON = Lesson(
    name="margins",
    title="A token flips where its margin is small",
    steps=(
        Predict(
            """
            Token 260 has the logit 22.30, token 253 has 22.27, and no other comes near. Greedy decoding takes the
            largest logit; among equal ones the lowest id. First both logits are rounded to bf16, whose values lie
            0.125 apart there. Which token id is taken?
            """,
            answer="taken",
        ),
        Python(
            """
            import numpy as np
            import softfloat_llm as sf
            from softfloat_llm.numerics.reduce import argmax
            exact = {253: 22.27, 260: 22.30}
            in_bf16 = {token: sf.round_to(logit, "bf16") for token, logit in exact.items()}
            row = np.zeros(300)
            row[list(in_bf16)] = list(in_bf16.values())
            taken = argmax(row)
            in_bf16, taken
            """
        ),
        Text(
            """
            The margin is the largest logit less the second. A rounding moves a logit by half an ulp at most, so a
            margin of more than one ulp outlives the rounding of the logits; it does not outlive larger errors that
            the model made before. The built-in model has sentences whose two best ends are nearly equally likely:
            """
        ),
        Python(
            """
            ref = sf.simulate("The cup is", recipe="f32", steps=8)
            run = sf.simulate(recipe="bf16", teacher=ref)
            found = sf.compare(run, ref)
            closest = min(found.steps, key=lambda step: step.margin_ulp)
            flips, steps = found.flips, len(found.steps)
            below = sum(step.margin_ulp < 1 for step in found.steps)
            reached = sum(step.margin_ulp <= step.error_ulp for step in found.steps)
            closest.step, f"margin {closest.margin_ulp:.3f}", f"error {closest.error_ulp:.3f}"
            """
        ),
        Picture("margin_ladder(found)"),
        Command("softfloat-llm ties 'The cup is' --recipe bf16"),
        Answer(
            """
            Both logits become 22.25, and the lower id, {taken}, wins, which was the second. Of the {steps} steps of
            the model {below} have a margin below one ulp, {reached} has one that the error of its row reaches, and
            {flips} flips. Errors are everywhere; flips are where margins are small.
            """
        ),
        Next(
            "The lesson `islands`: the places where engines keep f32 all the same.",
            run=(
                "softfloat-llm margins 'The cup is' --format bf16",
                "softfloat-llm bisect 'The cup is' --fast",
                "softfloat-llm explain step bf16 0 --prompt 'The cup is'",
            ),
        ),
    ),
)
