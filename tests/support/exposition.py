"""What Prometheus reads of a text of figures, by its own client's parser."""

from prometheus_client.parser import text_string_to_metric_families


def read(text):
    """Return each sample's value by its name and its labels, in the order of their names."""
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
