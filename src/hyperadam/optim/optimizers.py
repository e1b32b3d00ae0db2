"""The learned optimizers by name: each is a rule's front end with weights of its own."""

from hyperadam.optim.learned import LearnedOptimizer
from hyperadam.rules import DMRule, HyperAdam2Rule, HyperAdamRule, RNNpropRule


class HyperAdam(LearnedOptimizer):
    """HyperAdam (AAAI 2019): J Adams side by side, mixed by a small recurrent network.

    It chooses their decay rates and weights for every coordinate, at every step.

    >>> opt = hyperadam.HyperAdam(model.parameters())  # where torch.optim.Adam(...) stood

    The default weights are meta-trained. ``weights="adam-init"`` is an untrained rule that behaves
    like an average of Adams.
    The arguments are those of :class:`LearnedOptimizer`. Unless given, ``lr`` is the weights' own:
    0.005 for ``"hyperadam"``, 0.0075 for ``"hyperadam-horizon"``.
    """

    rule_class = HyperAdamRule
    default_weights = "hyperadam"


class HyperAdam2(LearnedOptimizer):
    """HyperAdam2: eight Adams from five buffers, mixed by small networks at a cost near Adam's.

    >>> opt = hyperadam.HyperAdam2(model.parameters(), total_steps=1000)

    Give it ``total_steps`` if you can: its steps warm up, decay to zero, and are shorter in long
    trainings. The step of a matrix is made orthogonal. Each tensor is looked at alone, so it may
    also step one parameter, or in the backward pass.
    The arguments are those of :class:`LearnedOptimizer`; ``lr`` is 0.01 unless given.
    ``process_group`` is not needed, and refused.
    """

    rule_class = HyperAdam2Rule
    default_weights = "hyperadam2"


class RNNprop(LearnedOptimizer):
    """RNNprop (Lv, Jiang and Li, 2017): a two-layer LSTM on Adam's moments, bounded by tanh.

    The arguments are those of :class:`LearnedOptimizer`; ``lr`` is 0.1 unless given.
    """

    rule_class = RNNpropRule
    default_weights = "rnnprop"


class DMOptimizer(LearnedOptimizer):
    """DMoptimizer (Andrychowicz et al., 2016): a two-layer LSTM on log and sign of the gradient.

    The arguments are those of :class:`LearnedOptimizer`; ``lr`` is 0.1 unless given.
    """

    rule_class = DMRule
    default_weights = "dm"
