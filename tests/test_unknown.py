"""The message about a name that nobody knows."""

from hyperadam.unknown import unknown


def test_it_lists_all_and_says_what_may_be_meant() -> None:
    known = ("adam", "adamw", "sgd")
    text = "no optimizer is called 'adma'; did you mean adam or adamw? there are adam, adamw, sgd"
    assert unknown("optimizer", "adma", known) == text
    assert unknown("task", "xyz", known, "and more") == (
        "no task is called 'xyz'; there are adam, adamw, sgd, and more"
    )
