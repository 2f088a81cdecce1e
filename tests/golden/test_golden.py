"""What users see of whole clusters stays as it is kept here: `python -m tests.golden`."""

import pytest

from support import golden

pytestmark = [pytest.mark.golden, pytest.mark.docker]


@pytest.mark.parametrize("spec", golden.SPECS)
def test_a_cluster_shows_what_it_showed(spec, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    found = golden.recorded(spec, folder)
    assert [line for item in found for line in golden.differences(*item)] == []
