"""Texts of pages on any subject, by part; names in braces are filled in."""

from __future__ import annotations

from typing import Any

_LLM: dict[str, Any] = {
    "final": (
        "Numbers are means over complete episodes with the 95 % bootstrap interval over "
        "instances, and the standard deviation over instances (n in the denominator, as in the "
        "paper). The column **Missing left out** leaves out rounds without a prediction, for the "
        "model and for the experts. Rows marked (paper) are published numbers, with other "
        "instances and other prompts. Other instances alone can change regret by a few mistakes."
    ),
    "answers": (
        "An answer is malformed if it is not a JSON object with the right key and value, or is "
        "cut at the token limit. The request is then repeated. If this fails, the prediction "
        "counts as missing. An answer with such an object among other text is called embedded, "
        "and is accepted. Numbers of tokens are those that the server reports."
    ),
    "acts": (
        "Families of algorithms are fitted to the choices, with a lapse rate and a temperature, "
        "and scored on other instances, in nats per choice. The answer is the set of families "
        "that cannot be distinguished from the best one (the model confidence set, 95 %). If the "
        "set has one family, it is **named**; if it has **several**, each of them may be right. "
        "**No memory** means that no family predicts better than the best family without a "
        "memory. **None** means that no family in the set fits: players simulated from it agree, "
        "repeat, stay or shift at other rates than the model. Choices do not show whether a "
        "model stores weights of experts."
    ),
    "notes": (
        "A note is *readable* if it has a tally (A:3/5) for every expert, and *exact* if every "
        "tally is the true count. *Best* and *worst* are the shares of notes in which the expert "
        "with the highest (lowest) tally was right most (least) often so far. *Most* and *least "
        "accurate* compare the note with the experts' true accuracies, or with their whole "
        "records if accuracies are unknown. In the anti-signal regime, the least accurate expert "
        "is the adversary."
    ),
    "regret": (
        "Regret is the number of mistakes beyond those of the best expert on the same rounds. A "
        "predictor that combines experts, or inverts one, can be better than the best expert. "
        "Its regret is then negative. A missing prediction counts as a mistake. All predictors "
        "play the same instances. The mistakes of a random baseline are their expected number."
    ),
    "prompts": (
        "These are the system prompts that were sent. Every other message is one JSON object "
        "with the keys that the prompts name."
    ),
    "set_aside": "These files were not used, because they are not traces or results, are "
    "copies of a run, or cannot be read.",
    "python": (
        "\n"
        "from interp.choices.behaviour import behaviour\n"
        "from interp.llm import loading, scores\n"
        "from reports.llm import transformer\n"
        "\n"
        "played = loading.load({path!r}{reading})\n"
        "others = {{name: transformer(name) for name in {models}}}\n"
        "scores.score(played, others, seed={seed}).to_frame()\n"
        "[player.to_frame() for player in behaviour(played, seed={seed})]\n"
    ),
    "lead": (
        "Language models play expert advice, round by round, with and without a note to "
        "themselves. They are compared with algorithms that solve the task, and with "
        "transformers whose only memory is a latent."
    ),
    "drawn": {
        "weighted majority, eta U[.05, .5] per episode": ["weighted_majority", "weighted majority"],
        "follow the leader": ["follow_the_leader", "follow the leader"],
        "follow previous winners": ["follow_previous_winners", "previous winners"],
        "majority vote": ["majority_vote", "majority vote"],
    },
    "first": {
        "title": "Regret over rounds",
        "caption": (
            "The regret of every model, averaged over conditions and instances, and the regret "
            "of the paper's baselines."
        ),
        "by": "regime",
        "ylabel": "regret (mistakes)",
        "height": 2.7,
        "width": 4.5,
    },
    "curves": {
        "title": "Regret of {model}",
        "caption": (
            "{model}: mean regret over at most {n} instances; bands are ± 1 standard deviation "
            "over instances."
        ),
        "paper": "4 and 15",
        "by": "panel",
        "ylabel": "regret (mistakes)",
        "height": 2.6,
        "direct": True,
    },
    "over_rounds": {
        "title": "{call} over rounds",
        "caption": "{call} after each round, averaged over runs.",
        "ylabel": "{what}",
    },
}
_INTERCHANGE: dict[str, Any] = {
    "text": (
        "In one round of an episode, an activation is set to its value in another episode. The "
        "outcome is compared with the algorithm's counterfactual, in which one variable of the "
        "same round is set to its value in the other episode. **Accuracy** counts only pairs of "
        "episodes in which setting the variable changes the algorithm's outcome. **Score** "
        "compares the change of the outcome with the right change. A score of 1 is the right "
        "change in every pair, and 0 is no better than no change. **Slope** is 1 if the change "
        "has the right size. The controls are **doing nothing** and **changing the same "
        "activations by as much in a random direction**. An accuracy of 1 means that, for these "
        "pairs, these sites hold the variable in a form that the rest of the round uses. Other "
        "sites may hold it, too."
    ),
    "whole": (
        "Whole activations are interchanged at sites that could store the variable. The state "
        "that the model then writes is decoded by a map that was fitted on other episodes. The "
        "written state counts as right if the error of its change is at most half of the "
        "counterfactual's change."
    ),
    "aligned": (
        "**Learned subspaces** (distributed alignment search) are directions at one site. They "
        "are trained on some episodes so that interchanging them gives the counterfactual's "
        "choice, and scored on other episodes. Such a training finds a basis in any network. "
        "Each basis is therefore compared with a basis trained for arbitrary labels, a basis "
        "trained in a re-initialised model, and an equally large change in a random subspace. "
        "Only a basis that is better than all three controls is evidence that the site holds the "
        "variable. On other inputs, the model may use another subspace."
    ),
    "steering_text": (
        "A state change of several sizes (doses) is added to the latents that one round reads, "
        "by {how}. The algorithm's state is changed in the same way, and the two predictions are "
        "compared. The control is random directions of equal norm. If a dose changes both "
        "predictions equally, the model uses this direction for this state, near these inputs. "
        "Large doses lead to states that never occur, and are not evidence."
    ),
    "wired": (
        "Only the subspace that the circuit names is interchanged. Controls are sites that do "
        "not hold the variable, and random subspaces of equal rank."
    ),
    "carried": (
        "Variables with a site that carries more than half of the effect: {held} of {all_of}. The "
        "score of a site is its effect as a share of the effect that the same interchange has in "
        "the algorithm. The claim about a variable has the score of its best site. That site is "
        "chosen on the episodes that also give its interval, which is not corrected for the choice."
    ),
    "learned": (
        "The best learned subspace, {name}, gives the counterfactual's choice in {share:.2f} "
        "of held-out pairs. Learned subspaces are blue dots, and their controls are grey "
        "squares; intervals are 95 % over episodes."
    ),
    "steered": (
        "After steering, model and algorithm differ by {distance:.3f}; after random directions "
        "they differ by {random:.3f} (means over doses other than 0). The largest difference is "
        "at dose {dose}: {apart}. The picture shows the mean {shows} at each dose. The table has "
        "the difference between model and algorithm, paired by episode. Bands are 95 % intervals "
        "over episodes."
    ),
    "columns": {
        "variable": "variable",
        "places": "interchanged at",
        "outcome": "read in",
        "iia_informative": "accuracy",
        "score": "score",
        "slope": "slope",
        "chance_informative": "doing nothing",
        "random": "random direction",
        "random_score": "random direction, score",
        "n_informative": "pairs",
        "iia": "of all pairs",
        "chance": "doing nothing, all pairs",
    },
    "sites": {
        "resid_pre": "residual stream before layer {}",
        "resid_mid": "residual stream within layer {}",
        "resid_post": "residual stream after layer {}",
        "attn_out": "attention of layer {}",
        "mlp_out": "MLP of layer {}",
    },
}
_PATCHING: dict[str, Any] = {
    "text": (
        "A clean and a corrupted run differ in one input. One activation of the clean run is "
        "patched into the corrupted run. A cell shows the restored share of the difference "
        "between the two runs: **1 restores the clean run, 0 does nothing**. A cell near 1 is "
        "evidence that the difference passes through this activation. Patching does not show "
        "what the activation means."
    ),
    "edges_text": (
        "An edge leads from a component that writes (a head, an MLP or the embedding) to a component "
        "that reads. A head reads through its query, key and value; an MLP or an output has "
        "one input. Each edge is scored by EAP-IG between a run and a run with another "
        "episode's latents. The score is the gradient of the logit difference, averaged "
        "between the two runs, times the difference between the values on the edge. A cut edge "
        "carries the value of the other run, at all positions. **Faithfulness** is the share "
        "of the logit difference that a circuit preserves: 1 for the whole model, and 0 "
        "without any edges. **CPR** is the area under faithfulness over circuit sizes (higher "
        "is better), **CMD** the area between faithfulness and 1 (lower is better). The circuit "
        "found is sufficient for this metric, these pairs and this way of cutting. Other circuits "
        "may be sufficient, too. The scores do not show which variables the edges carry."
    ),
    "points": (
        "This machine has no layers of attention heads. The state (`latent`) and the hook points of "
        "the machine are patched instead: each row, cycle and position separately."
    ),
    "curve": {
        "title": "Faithfulness against circuit size",
        "caption": (
            "A circuit of the best-scored edges ({n} of {of_all}) preserves {kept} of the "
            "difference, and circuits of as many random edges preserve {random:.2f}. The curves "
            "show both for circuits of every size."
        ),
        "x": "size",
        "xlabel": "number of edges kept, of {of_all}",
        "ylabel": "faithfulness",
        "log_x": True,
        "reference": {
            "whole model": 1.0,
        },
    },
}
_HEADS: dict[str, Any] = {
    "attention": (
        "Rows (destinations) attend to columns (sources). Open the view below the picture to "
        "choose an episode, a round, a layer and a head. Hover over a head to enlarge it, "
        "click to keep it enlarged, and hover over a cell to see its weight. Weights are "
        "rounded to 1/1000 of the largest weight of a layer; `reports.attention.show` draws "
        "exact weights of your own run. Grey cells are hidden by the causal mask. Linear heads "
        "show raw scores, negative ones in orange. **The attention of a head does not show "
        "what the head does**: patching and the circuit show that."
    ),
    "attended": (
        "Largest attention weight: head {head} reads {read} at {at} (weight {size:.2f}). The "
        "picture shows every head in round {round} of episode {shown}."
    ),
    "most": (
        "Most important read: head {head} copies from {source} to {target}. Without this read, "
        "the {exit} changes by {effect:.0%} of the distance between two episodes."
    ),
}
_VERIFICATION: dict[str, Any] = {
    "text": (
        "The model ran over new episodes and read its own state in every round. Every variable "
        "of its circuit was read in the forward pass, in every round, and compared with the "
        "algorithm in NumPy. Each error is the largest over all episodes, rounds and elements. "
        "This shows that this construction computes the algorithm; it is no evidence about a "
        "learned model."
    ),
    "exits_text": (
        "The machine ran over new episodes and read its own state in every round. Its "
        "predictions and its state were compared with {algorithm}. Each error is the largest "
        "over all episodes, rounds and elements. This does not show how the machine computes "
        "predictions and state."
    ),
}
_PROBING: dict[str, Any] = {
    "text": (
        "Linear probes are fitted on some episodes and scored on others. The controls repeat the "
        "fit on something that should not contain the target, such as an untrained copy of the "
        "model. Intervals are for scores on new episodes. A high score means that a linear map "
        "can read the target from the latents. **A high score does not mean that the model uses "
        "the target**; patching tests whether it does."
    ),
    "part": (
        "\n\n**Only a part of the state was probed.** Probes read only `{site}`. The rest of the "
        "state grows with every round and is too wide for a probe, so it may hold variables "
        "that are not found here."
    ),
}
_AUDIT: dict[str, Any] = {
    "text": (
        "Each row is a robustness check. The verdict on a check depends on the whole 95 % "
        "interval over episodes and on controls. A state that the model uses and that can be "
        "decoded may still encode something other than the decoded variable."
    ),
    "later": {
        "title": "How long the effect of the state lasts",
        "caption": (
            "How much predictions change in later rounds, if one round reads another episode's "
            "state. {bands}"
        ),
        "x": "rounds_on",
        "width": 4.5,
        "xlabel": "rounds later",
        "ylabel": "distance of predictions",
    },
}
_OVERVIEW: dict[str, Any] = {
    "python": (
        "import interp\n"
        "from interp import tasks\n"
        "\n"
        "model = {model}\n"
        "episodes = {task}.sample_for(model, {n_episodes}, {n_rounds}, seed={seed}{drawn})\n"
        "run = interp.rollout(model, episodes)\n"
        "run.predictions                       # {axes}"
    ),
}
_LEARNING: dict[str, Any] = {
    "curves": {
        "title": "Loss over training steps",
        "caption": (
            "{ends} The loss is the difference from {floor}, in nats, on held-out episodes. "
            "Lines are means over seeds, and the first two bands go from the lowest to the "
            "highest seed."
        ),
        "ends": "loss",
        "x": "step",
        "ylabel": "loss above {floor} (nats)",
        "log_y": True,
    },
}
_COMPARISON: dict[str, Any] = {
    "lead": (
        "Are the two models the same machine? Four questions are answered separately, because two "
        "models can make the same predictions in different ways."
    ),
    "closest": (
        "{name} comes closest (blue; the other families are grey). The number is the share of "
        "the predictions that a family explains, beyond the best prediction without a memory, "
        "with its 95 % interval over episodes."
    ),
    "distances": {
        "classes": "Jensen-Shannon divergence",
        "mean": "squared difference",
        "normal": "mean of both Kullback-Leibler divergences",
    },
}
_ATTENTION: dict[str, Any] = {
    "notice": (
        "The attention views are drawn by CircuitsVis {version} (MIT licence, below), whose "
        "script is part of this page. It bundles TensorFlow.js (Apache License 2.0, "
        "https://www.apache.org/licenses/LICENSE-2.0) and React, Chart.js and other libraries "
        "(MIT licence)."
    ),
}
_CHOICES: dict[str, Any] = {
    "python": (
        "from interp.choices.explain import explain_choices\n"
        "from interp.tasks import bandit\n"
        "\n"
        "played = bandit.read({path!r}{columns})\n"
        "print(explain_choices(played, played.choices, seed={seed}))"
    ),
    "participants": (
        "Each participant is analysed separately. The table counts, for each family, the "
        "participants whose set contains the family, the participants for whom it is the only "
        "one, and those for whom it predicts best. Parameters are those of maximum "
        "likelihood, with 95 % profile likelihood intervals. A short record shows little about one "
        "participant, so sets are large."
    ),
    "families": (
        "Each family was fitted to three quarters of the units (participants, episodes or "
        "trials) and scored on the last quarter. The column 'nats' has the loss per choice on "
        "this quarter; lower is better. 'Behind' is the paired difference from the best "
        "family, with its standard error. The set has the families that the data cannot "
        "distinguish from the best one (the model confidence set, 95 %). 'Passes' says whether "
        "players simulated from the family agree, repeat, stay and shift as often as the real "
        "ones. A family that fits the choices does not show how a player computes."
    ),
    "recovery": (
        "How well can families be distinguished with this amount of data? Players were "
        "simulated from the best families, with the fitted parameters and as many choices as a "
        "participant made, and analysed in the same way. A row is the family of the simulated "
        "player, and a column the family that predicts this player best."
    ),
    "portrait": (
        "The logit of an arm is log p / (1 - p) before a round. The picture shows the mean "
        "change of the logit in a round, in bins with equally many rounds. Solid lines are for "
        "rounds in which the arm was chosen, and dashed lines for rounds in which another arm "
        "was chosen. A wide band means that the change depends on more than the logit. The "
        "curves are for the fitted family and for the GRU on these rounds, because the players' "
        "own logits cannot be observed."
    ),
    "beside": (
        "Each player was analysed in the same way. The choices of a network are drawn from its "
        "predictions in the rounds that the participants saw. For each family and player, the "
        "table has the loss on the player's choices, whether the player's set contains the "
        "family, and how many participants' sets contain it. Compare losses between families, "
        "and not between players: if a player chooses the arms equally often, every family "
        "predicts the choices worse."
    ),
    "lead": (
        "Which learning algorithm explains these players' choices, with which parameters, and "
        "does a small network do as well?"
    ),
}
_PAGE: dict[str, Any] = {
    "below": [
        "*.html",
        "comparisons/*/comparison.html",
        "audits/*/*.html",
        "*/llm.html",
        "*/benchmark.html",
        "choices/*.html",
    ],
    "kinds": {
        "handwired": "Wired by hand",
        "learned": "Learned",
        "comparison": "Compared",
        "audit": "Audited",
        "llm": "Language models",
        "choices": "Choices of players",
    },
}
_EXPLORE: dict[str, Any] = {
    "kinds": {
        "input": "change an input",
        "move": "change the decoded state",
        "patch": "take the activation from another episode",
        "zero": "set to zero",
        "mean": "set to the mean over episodes",
        "memory": "take over another machine's state",
    },
}
TEXTS: dict[str, Any] = {
    "llm": _LLM,
    "interchange": _INTERCHANGE,
    "patching": _PATCHING,
    "heads": _HEADS,
    "verification": _VERIFICATION,
    "probing": _PROBING,
    "audit": _AUDIT,
    "overview": _OVERVIEW,
    "learning": _LEARNING,
    "comparison": _COMPARISON,
    "attention": _ATTENTION,
    "choices": _CHOICES,
    "page": _PAGE,
    "explore": _EXPLORE,
}

OF_COMPARISONS: dict[str, dict[str, str]] = {
    "algorithm": {
        "title": "Which algorithm",
        "text": (
            "Every family of algorithms of the task is fitted on some episodes and scored on "
            "others, by the {apart} of the predictions. This shows which predictions the model "
            "makes, but not how the model computes them."
        ),
    },
    "behaviour": {
        "title": "Behaviour",
        "text": (
            "**Average, rounds, responses.** The average is the distance between the predictions "
            "of the two machines, compared with how much their memories change predictions. An "
            "average hides rare differences. So the page also has the share of rounds in which "
            "the predictions differ clearly, and the responses to single inputs. One input is "
            "changed in one round, and the changes of all later predictions are compared. The "
            "number is 1 for equal responses, and 0 for no response or an unrelated one."
        ),
    },
    "state": {
        "title": "State",
        "text": (
            "**Stitching.** An affine map from one model's latents to the other model's latents "
            "is fitted on separate episodes. The other model then continues from the mapped "
            "latents. A score of 1 means that the other model predicts as well as with its own "
            "latents. A score of 0 means that it predicts no better than with initial latents. "
            "If the map also reads the round number, it has a separate offset for every round."
        ),
    },
    "update": {
        "title": "Update",
        "text": (
            "**Step R2.** The state is decoded before and after a round. The decoded change is "
            "compared with the algorithm's update, for states that occur and for states that "
            "no episode reaches."
        ),
    },
    "response": {
        "title": "Response through the state",
        "text": (
            "The response to a changed input is compared with the effect of changing the "
            "decoded state. The state is changed just before the prediction, by the amount by "
            "which the input changes it in the algorithm. A machine that uses an input late, "
            "or predicts from something else, responds differently."
        ),
    },
    "circuit": {
        "title": "Circuit",
        "text": (
            "**Roles.** The table has a row for every head with an effect: what the head "
            "reads, for which outcome it is needed, and which later head depends on it. Heads "
            "of one model are matched to heads of the other. The similarity of the two tables "
            "is computed under this matching. Equal roles do not prove that the circuits are "
            "equal."
        ),
    },
}
"""Title and text of each question of a comparison, in page order."""
