"""Sites: text and back, enumeration, and errors that list what exists."""

from interp.interventions.sites import COMPONENTS, Site, sites
from tests.cases import by_cases
from tests.refusals import refuses


def test_every_site_round_trips_through_text(untrained, untrained_q):
    """str and parse are inverse for every site of both layouts, labels like s'_1, <z>, p? and a* included."""
    for model in (untrained, untrained_q):
        for site in sites(model, components=COMPONENTS):
            assert Site.parse(str(site)) == site


def test_head_is_another_word_for_z():
    assert Site.parse("head[2.0]@w?") == Site("z", 2, 0, "w?")


def test_every_hook_exists_and_every_index_selects(untrained):
    """A site's hook is a hook point, and its index leaves one vector per episode."""
    import interp
    from interp.tasks import experts

    every = sites(untrained, components=COMPONENTS, positions=["<z>"])
    run = interp.rollout(untrained, experts.sample(2, 2, 3), names_filter=[s.hook for s in every], rounds=1)
    for site in every:
        vector = site.read(run.cache[site.hook][:, 0], run.layout)
        assert vector.ndim == 2 and len(vector) == 2


def test_enumeration_counts(untrained):
    """2 layers, 2 heads, 11 positions."""
    assert len(sites(untrained, components="head")) == 2 * 2 * 11
    assert len(sites(untrained, components=("resid_pre", "embed"))) == 2 * 11 + 11
    assert [str(s) for s in sites(untrained, components="latent")] == ["latent@<z>"]
    assert len(sites(untrained, components="pattern", positions=None)) == 4
    assert len(sites(untrained, components="mlp_out", positions="p?", layers=[1])) == 1


@by_cases("text, message")
def test_bad_texts(text, message):
    refuses(message, Site.parse, text)


@by_cases("options, message")
def test_sites_that_do_not_exist(untrained, options, message):
    refuses(message, sites, untrained, **options)


def test_models_without_mlp_say_so(napkin):
    refuses("has no MLP", sites, napkin, components="mlp_out")
