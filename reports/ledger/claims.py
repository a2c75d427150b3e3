"""The paper's claims in its order: every sentence that a measurement could contradict."""

from __future__ import annotations

from dataclasses import dataclass

from interp.support.checks import checked_fields

HANDWIRED = "handwired"
LEARNED = "learned"


@dataclass(frozen=True)
@checked_fields
class PaperClaim:
    """A sentence of the paper that could be false.

    Attributes:
        key: key of the claim, and of the measures that decide it.
        task: key of the task that it is about.
        place: its place in the paper.
        sentence: what the paper says, shortened.
        of: the kind of model that it is about, "handwired" or "learned".
        command: the shell command that shows the full tables.
    """

    key: str
    task: str
    place: str
    sentence: str
    of: str
    command: str


CLAIMS: tuple[PaperClaim, ...] = (
    PaperClaim(
        key="exact weights",
        task="experts",
        place="Section 3, theorem on exponential weights",
        sentence="A constant-depth transformer with one latent recovers exponential weights.",
        of=HANDWIRED,
        command="interp verify wma-handwired --rounds 1000",
    ),
    PaperClaim(
        key="regret",
        task="experts",
        place="Section 5.1, figure 1 (left)",
        sentence="A transformer trained on labels performs like multiplicative weights.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="needs latent",
        task="experts",
        place="Appendix F.1, evaluation",
        sentence="The latent significantly improves performance on long sequences.",
        of=LEARNED,
        command="interp audit MODEL",
    ),
    PaperClaim(
        key="log-weights",
        task="experts",
        place="Section 5.1, introduction",
        sentence="Its latents recover expert-weight information.",
        of=LEARNED,
        command="interp probe MODEL",
    ),
    PaperClaim(
        key="latent attended",
        task="experts",
        place="Section 5.1, figure 1 (right)",
        sentence="The prediction token attends significantly to the latent.",
        of=LEARNED,
        command="interp report MODEL",
    ),
    PaperClaim(
        key="three good experts",
        task="experts",
        place="Appendix F.1, figure 8 (top)",
        sentence="Compared with multiplicative weights, it deteriorates with three "
        "high-quality experts.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="correlated experts",
        task="experts",
        place="Appendix F.1, figure 8 (bottom)",
        sentence="Its performance decreases as the experts' predictions become correlated.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="language models",
        task="experts",
        place="Abstract, section 5.3, tables 1 and 2",
        sentence="The small transformer outperforms DeepSeek-V3 and Qwen-3-14B.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="exact table",
        task="qlearning",
        place="Section 4, theorem on Q-learning",
        sentence="A four-layer transformer implements the Q-learning update at each step.",
        of=HANDWIRED,
        command="interp verify qlearning-handwired --rounds 1000",
    ),
    PaperClaim(
        key="agreement",
        task="qlearning",
        place="Section 5.2, figure 2 (right)",
        sentence="Its choices agree with the tabular greedy action at nearly every step.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="agreement under shift",
        task="qlearning",
        place="Section 5.2, figure 2 (right)",
        sentence="Its choices agree under distribution shift, too.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="long horizon",
        task="qlearning",
        place="Appendix F.2, figure 11",
        sentence="The model does not degrade over long horizons.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="reward",
        task="qlearning",
        place="Section 5.2, figures 2 (left) and 14",
        sentence="The model earns what tabular Q-learning earns.",
        of=LEARNED,
        command="interp evaluate MODEL",
    ),
    PaperClaim(
        key="update decoded",
        task="qlearning",
        place="Section 5.2, figures 2 (middle) and 12",
        sentence="Reward, current value, bootstrapped value and TD error can be decoded from the "
        "change of the latent.",
        of=LEARNED,
        command="interp probe MODEL --site change",
    ),
    PaperClaim(
        key="table decoded",
        task="qlearning",
        place="Appendix F.2, figure 13",
        sentence="Its latents hold the Q-table.",
        of=LEARNED,
        command="interp probe MODEL",
    ),
    PaperClaim(
        key="update attends",
        task="qlearning",
        place="Appendix F.2, figure 10",
        sentence="The Update token attends strongly to a_t, r_t and the chosen a*.",
        of=LEARNED,
        command="interp report MODEL",
    ),
)
