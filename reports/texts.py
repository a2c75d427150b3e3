"""What pages say whatever they are about, by part; what stands in braces is filled in."""

from __future__ import annotations

from typing import Any

_LLM: dict[str, Any] = {
    "final": (
        "Numbers are means over complete episodes with the 95 % bootstrap interval over "
        "instances, and the standard deviation over instances (n in the denominator, as in the "
        "paper). In the column **Missing left out**, rounds without a prediction do not count, "
        "for the experts either. Rows marked (paper) are the paper's published numbers, on "
        "other instances and with other prompts. Other instances alone can make a difference of "
        "a few mistakes."
    ),
    "answers": (
        "A malformed answer is not a JSON object with the right key and value, or is cut at the "
        "token limit. The model is asked again; if that fails, the prediction is missing, never "
        "0. If such an object stands among other words, the answer is called embedded, and it "
        "counts. Numbers of tokens are the server's."
    ),
    "acts": (
        "Families of algorithms are fitted to the choices, with a lapse rate and a temperature, "
        "and scored in nats a choice on instances left out. The answer is the set of families "
        "that cannot be distinguished from the best one (the model confidence set, 95 %). If "
        "the set has one family, it is **named**; if it has **several**, each of them may be "
        "right. **No memory** means that no family predicts better than the best one that "
        "remembers nothing. **None** means that no family in the set fits: its simulated "
        "players agree, repeat, stay or shift at other rates than the model. Choices do not "
        "show that a model keeps weights."
    ),
    "notes": (
        "A note is *readable* if it has a tally (A:3/5) for every expert, and *exact* if every "
        "tally is the true count. *Best* and *worst* say how often the expert that it ranks first (last) "
        "is the best (worst) on the rounds played. *Most* and *least accurate* compare with the "
        "experts' accuracies, or with their records over the whole instance if accuracies are "
        "unknown. In the anti-signal regime, the least accurate is the adversary."
    ),
    "regret": (
        "Regret counts the mistakes beyond those of the best expert on the same rounds. It is "
        "never clipped: a predictor that combines experts, or inverts one, can go below zero. A "
        "missing prediction counts as a mistake here. All predictors see the same instances. "
        "For a baseline that tosses coins, the expected number of mistakes counts."
    ),
    "prompts": (
        "These are the system prompts as they were sent. Every further message is one JSON "
        "object with the keys that they name."
    ),
    "set_aside": "These files were not used: they are not traces or results, are copies of a "
    "run, or cannot be read.",
    "python": (
        "\n"
        "from interp.choices.behaviour import behaviour\n"
        "from interp.llm import loading, scores\n"
        "from reports.llm import transformer\n"
        "\n"
        "played = loading.load({path!r})\n"
        'scores.score(played, {{"handwired": transformer("wma-handwired")}}).to_frame()\n'
        "[one.to_frame() for one in behaviour(played)]\n"
    ),
    "lead": (
        "Language models that predict with expert advice, round by round, with and without a "
        "note to themselves. They are compared with algorithms that solve the task, and with "
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
            "The regret of every model, averaged over conditions and instances, and that of the "
            "paper's baselines."
        ),
        "by": "regime",
        "ylabel": "regret (mistakes)",
        "height": 2.7,
        "width": 4.5,
    },
    "curves": {
        "title": "Regret of {model}",
        "caption": (
            "{model}: mean over {n} instances, bands ± 1 standard deviation over instances."
        ),
        "paper": "4 and 15",
        "by": "panel",
        "ylabel": "regret (mistakes)",
        "height": 2.6,
        "direct": True,
    },
    "over_rounds": {
        "title": "{call} over rounds",
        "caption": "{call} after each round, mean over runs.",
        "ylabel": "{what}",
    },
}
_INTERCHANGE: dict[str, Any] = {
    "text": (
        "In one round of an episode, an activation is set to its value in another episode. The "
        "outcome is compared with the algorithm's own counterfactual: the same round with one "
        "variable set to its value there. **Accuracy** counts only pairs of episodes in which "
        "this changes the algorithm's outcome. **Score** compares how far the outcome moved "
        "with how far it should have moved. It is 1 for the whole counterfactual effect in "
        "every pair, and 0 is no better than no effect. **Slope** is 1 if the effect has the "
        "right size. The controls are **doing nothing** and **moving the same activations as "
        "far in a random direction**. An accuracy of 1 means that, for these pairs, these "
        "places hold the variable in a form that the rest of the round uses. Other places may "
        "hold it, too."
    ),
    "whole": (
        "Whole activations are interchanged at places where the variable could be. The state "
        "that the model then writes is decoded by a map that was fitted on other episodes. It "
        "counts as right if its change is within half of the change that the counterfactual "
        "asks for."
    ),
    "aligned": (
        "**Learned subspaces** (distributed alignment search) are directions at one place. They "
        "are trained on some episodes so that interchanging them gives the counterfactual's "
        "choice, and scored on others. Methods that train a basis find something in any "
        "network. Each basis is therefore compared with one trained for arbitrary labels, one "
        "trained in a re-initialised model, and an equally large move in a random subspace. If "
        "a basis does not beat all of them, it is no evidence that the place holds the "
        "variable. If it does, the model need not use it on other inputs."
    ),
    "steering_text": (
        "A state change of several sizes (doses) is added to the latents that one round reads, "
        "by {how}. The algorithm's state is changed in the same way, and the two predictions "
        "are compared. The control is random directions of equal norm. If a dose moves both "
        "predictions equally, the model uses this direction for this state around these inputs. "
        "Large doses leave the range of states that occur, and are no evidence."
    ),
    "wired": (
        "Only the subspace that the circuit names is interchanged. Controls are places that do "
        "not hold the variable, and random subspaces of equal rank."
    ),
    "carried": (
        "{held} of {all_of} variables have a place that carries more than half of the effect. "
        "The score of a place is the share of the effect that the swap has in the algorithm."
    ),
    "learned": (
        "The best learned subspace, {name}, gives the counterfactual's choice in {share:.2f} "
        "of held-out pairs. Learned subspaces are blue and their controls grey squares; "
        "intervals are 95 % over episodes."
    ),
    "steered": (
        "Steering moves it within {distance:.3f} of the algorithm; random directions miss by "
        "{random:.3f} (means over doses other than 0). It is farthest at dose {dose}: {apart}. "
        "Drawn is the mean {shows} by dose; the table has model minus algorithm, paired by episode. "
        "Bands: 95 % over episodes, of the first two."
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
        "Two runs differ in one thing. One activation of the clean run is put into the "
        "corrupted run. A cell shows which share of their difference comes back: **1 restores "
        "the clean run, 0 does nothing**. A cell near 1 is evidence that the difference between "
        "the inputs passes there. It does not say what the activation means."
    ),
    "edges_text": (
        "An edge leads from a part that writes (a head, an MLP or the embedding) to one that "
        "reads. A head reads by its query, key and value; an MLP or an output has one input. "
        "Each edge is scored by EAP-IG between a run and one with another episode's latents. "
        "The score is the gradient of the logit difference, averaged between the two runs, "
        "times the difference of what the edge carries. An edge that is cut carries the value "
        "of the other run, at all positions. **Faithfulness** is the share of the difference "
        "between the whole model (1) and none of its edges (0) that a circuit keeps. **CPR** is "
        "the area under faithfulness over circuit sizes (higher is better), **CMD** the area "
        "between it and 1 (lower is better). Such a circuit is sufficient for this metric, "
        "these pairs and this way of cutting. Other circuits may be sufficient, too, and this "
        "does not show what its edges mean."
    ),
    "points": (
        "This machine has no layers of attention heads. Patched are what it carries (`latent`) "
        "and its own points: each row, cycle and position separately."
    ),
    "curve": {
        "title": "Faithfulness against circuit size",
        "caption": (
            "{n} of {of_all} edges keep {kept} of the difference; as many at random keep "
            "{random:.2f}. The curves are of circuits of the best-scored edges, and of as many "
            "at random."
        ),
        "x": "size",
        "xlabel": "edges kept, of {of_all}",
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
        "choose an episode, a round, a layer and a head, by mouse or by keyboard. Hover over a "
        "head to enlarge it, click to keep it enlarged, and hover over a cell to see its "
        "weight. Weights are rounded to 1/1000 of the layer's largest; the cache of your own "
        "run, drawn by `reports.attention.show`, has all digits and every round. Grey cells are "
        "hidden by the causal mask. Linear heads show raw scores, negative ones in orange. "
        "**Where a head looks does not show what it does**: patching and the circuit show that."
    ),
    "attended": (
        "Head {head} reads most: {read} at {at} (attention {size:.2f}). Every head in round "
        "{round} of episode {shown}."
    ),
    "most": (
        "Most important read: head {head} carries {source} to {target}; without it the {exit} "
        "changes by {effect:.0%} of the distance between episodes."
    ),
}
_VERIFICATION: dict[str, Any] = {
    "text": (
        "The model ran over fresh episodes and carried its own state from round to round. "
        "Every causal variable of its circuit was read inside the forward pass, at every "
        "round, and compared with the reference algorithm in NumPy. Errors are the largest "
        "over all episodes, rounds and elements. This shows that this construction computes "
        "the algorithm; it is no evidence about a learned model."
    ),
    "exits_text": (
        "The machine ran over fresh episodes and carried its own state from round to round. Its "
        "predictions, and the state that is read from what it carries, were compared with "
        "{algorithm}. Errors are the largest over all episodes, rounds and elements. Nothing is "
        "known of what the machine does in between."
    ),
}
_PROBING: dict[str, Any] = {
    "text": (
        "Linear probes are fitted on some episodes and scored on others. The controls repeat "
        "the fit on something that should not hold the target, such as an untrained copy of the "
        "model. An interval is for the score of the probe on new episodes, after it is refitted "
        "on all of these. A high score says that the latents carry the target in a form that a "
        "linear map can read. **It does not say that the model uses it**, which is what "
        "patching tests."
    ),
    "part": (
        "\n\n**A part of what is carried.** Probes read only `{site}`. The rest of "
        "what is carried grows with every round and is too wide for a probe, so it may hold "
        "what is not found here."
    ),
}
_AUDIT: dict[str, Any] = {
    "text": (
        "Each row is a robustness check, judged by its whole 95 % interval over episodes and by "
        "its controls. This is not evidence that the state means what a decoder reads from it: "
        "a state can be used and decodable, and still be something else."
    ),
    "later": {
        "title": "How long the state lasts",
        "caption": (
            "How far predictions move in the rounds after one that reads another state. {bands}"
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
            "{ends} The loss is above {floor}, in nats, on held-out episodes. Lines are means "
            "over seeds, and the first two bands run from the lowest to the highest."
        ),
        "ends": "loss",
        "x": "step",
        "ylabel": "loss above {floor} (nats)",
        "log_y": True,
    },
}
_COMPARISON: dict[str, Any] = {
    "lead": (
        "Is it the same machine? Four questions are answered separately, because a model can "
        "make the same predictions in another way."
    ),
    "closest": (
        "{name} comes closest (blue; the other families are grey). The number is the share of "
        "the divergence from the best prediction without a memory that a family explains, with "
        "its 95 % interval over episodes."
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
        "print(explain_choices(played, played.choices))"
    ),
    "participants": (
        "Each participant is analysed separately. The table says for how many the set contains "
        "a family, for how many it is the only one, and for how many it predicts best. "
        "Parameters are maximum likelihood on a grid, with 95 % profile likelihood intervals. A "
        "short record shows little about one participant, so sets are large."
    ),
    "families": (
        "Each family was fitted to three quarters of the units (participants, episodes or "
        "trials) and scored on the last one. The column *nats* has its loss for a choice there; "
        "fewer are better. *Behind* is the paired difference from the best family, with its "
        "standard error. The set has the families that the data cannot distinguish from the "
        "best one (the model confidence set, 95 %). *Passes* says whether players simulated "
        "from the family agree, repeat, stay and shift as often as the real ones. A family that "
        "fits the choices is no evidence of how a player computes."
    ),
    "recovery": (
        "How well can families be distinguished in a record of this size? Players of the best "
        "families, at the fitted parameters, made as many choices as a participant did, and "
        "were analysed in the same way. A row is the family that the player follows, and a "
        "column the family that predicts it best."
    ),
    "portrait": (
        "The logit of an arm is log p / (1 - p) before a round. The picture shows its mean "
        "change in a round, in bins with equally many rounds. Solid lines are for rounds in "
        "which the arm was chosen, and broken lines for rounds in which another arm was. The "
        "wider the band, the more the change depends on anything but the logit. The curves are "
        "those of the fitted family and of the cell on these rounds: the players' own logits "
        "are not seen."
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
        "move": "move the decoded state",
        "patch": "take it from another episode",
        "zero": "set to zero",
        "mean": "set to the mean over episodes",
        "memory": "take over a memory",
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
            "makes, not how it computes them."
        ),
    },
    "behaviour": {
        "title": "Behaviour",
        "text": (
            "**Average, rounds, responses.** The average says how far apart the predictions "
            "are, as a share of what the two memories are worth. An average hides rare "
            "differences. So the page also has the share of rounds in which the predictions "
            "differ plainly, and the response to single inputs. One input is changed in one "
            "round of one episode, and the changes of all later predictions are compared. The "
            "number is 1 for the same response, and 0 for none or an unrelated one."
        ),
    },
    "state": {
        "title": "State",
        "text": (
            "**Stitching.** An affine map from one model's latents to the other's is fitted on "
            "other episodes. The other model then runs on from the mapped latents. A score of 1 "
            "means that it predicts as with its own memory, and 0 as with none. If the round "
            "number is supplied, the map has a separate offset for every round."
        ),
    },
    "update": {
        "title": "Update",
        "text": (
            "**Step R2.** The state is decoded before and after a round, and the state after it "
            "is compared with the algorithm's update of the state before. This is done for "
            "states that occur, and for states that no episode reaches."
        ),
    },
    "response": {
        "title": "Response through the state",
        "text": (
            "The response to a changed input is compared with the effect of moving the decoded "
            "state. The state is moved just before the prediction, by the change that the input "
            "makes in the algorithm. A machine that sees an input late, or predicts from "
            "something else, responds differently."
        ),
    },
    "circuit": {
        "title": "Circuit",
        "text": (
            "**Roles.** The table has a row for every head that changes anything: what it "
            "reads, for which outcome it is needed, and which later head depends on it. Heads "
            "of one model are matched to heads of the other, and the similarity is what the two "
            "tables have in common. Equal roles do not prove that the circuits are equal."
        ),
    },
}
"""Key of a part of a comparison -> its title and its text, in page order."""
