"""One specification for all testbeds: of these clusters, only the backend block differs."""

SUBNET = "10.200.208.0/24"  # own hosts have their addresses already
EVERYWHERE = {
    "nodes": [{"name": "node", "count": 2}],
    "networks": {"experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"}},
    "storage": {"shared": {"provider": "volume"}},
}


def becomes_a_cluster_that_trains(cluster, up):
    """Check what `up` said, and train; the cluster was made from that specification."""
    assert {key: cluster.spec[key] for key in EVERYWHERE} == EVERYWHERE
    assert [node["state"] for node in up["nodes"]] == ["ready"] * 2
    assert (up["verification"]["failed"], up["verification"]["passed"] > 10) == (0, True)
    document = cluster.json("run", "digits", "--set", "epochs=20")
    assert document["world_size"] == 2
    assert document["test_accuracy"] >= 0.97
