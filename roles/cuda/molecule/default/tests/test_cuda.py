"""A node after role cuda, before its environment is there."""


def test_everyone_finds_cuda_where_it_is_looked_for(host):
    link = host.file("/usr/local/cuda")
    assert link.is_symlink
    # Through `current`: a rebuilt environment is found, too.
    assert "/shared/env/current/lib/python3" in host.check_output("readlink /usr/local/cuda")


def test_login_shells_know_cuda(host):
    home = host.check_output("bash -lc 'echo $CUDA_HOME'")
    assert home == host.check_output("readlink /usr/local/cuda")
    assert f"{home}/bin" in host.check_output("bash -lc 'echo $PATH'").split(":")


def test_the_mock_of_nvidia_smi_is_gone(host):
    assert not host.exists("nvidia-smi")


def test_a_compiler_that_nobody_needs_any_more_is_gone(host):
    assert not host.file("/etc/gpubed/cuda-compiler").exists
    assert not host.package("cuda-nvcc-12-4").is_installed
    assert not host.package("cuda-cudart-dev-12-4").is_installed
