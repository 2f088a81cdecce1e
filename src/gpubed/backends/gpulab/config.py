"""Options of the GPULab backend."""

from typing import Annotated, Literal

from pydantic import Field

from gpubed.core import wording
from gpubed.core.units import Bytes, Seconds, Whole, WholeOrNone
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import FOLDER, OF_A_SERVER, Registries


class Config(BackendConfig):
    """Jobs in containers; each node of the specification is a job on one worker."""

    lends_nodes = False
    releases = False

    type: Literal["gpulab"]
    master: Annotated[str, OF_A_SERVER] = Field(
        default="https://gpulab.ilabt.imec.be/api/",
        pattern=wording.pattern(
            r"^https://[^/\s?#@]+/([^\s?#]+/)?$", "a URL that begins with https:// and ends with /"
        ),
        description="URL of the API, ends in `/`",
    )
    certificate: str = Field(
        min_length=1, description="login PEM file: certificate and private key"
    )
    password_file: str | None = Field(
        default=None, description="file with the key's password, when it has one"
    )
    ca_bundle: str | None = Field(
        default=None, description="authorities that vouch for the server; else the system's"
    )
    project: str = Field(
        pattern=wording.pattern(r"^[A-Za-z0-9_.-]+$", "letters, digits, '_', '.' and '-'"),
        description="who the jobs are for",
    )
    # `[registry[:port]/]name[:tag]` in lower case; GPULab refuses digests.
    image: str = Field(
        pattern=wording.pattern(
            r"^([a-z0-9.-]+(:[0-9]+)?/)?[a-z0-9._-]+(/[a-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$",
            "an image, such as gpulab.ilabt.imec.be:5050/team/train:1",
        ),
        description="container image with python3, horovodrun and what jobs import",
    )
    registries: Registries = Field(
        default={},
        description="logins to registries of images; GPULab keeps them in each job's definition",
    )
    jobs: Literal["one", "trials"] = Field(
        default="one", description="trials: each node is a job and a Horovod world of its own"
    )
    cluster: WholeOrNone = Field(default=None, ge=0, description="GPULab's cluster id")
    gpu_model: tuple[Annotated[str, Field(min_length=2)], ...] = Field(
        default=(), description="parts of GPU names, any of which will do"
    )
    storage: str | None = Field(
        default="/project_ghent",
        pattern=FOLDER,
        description="project storage, mounted at `storage.shared.path`",
    )
    shm: Bytes = Field(
        default=2 * 2**30, description="memory for `/dev/shm` (NCCL, data loaders), on top"
    )
    parallel: Whole = Field(
        default=10, ge=1, le=20, description="jobs at a time; fair use allows 10"
    )
    patience: Seconds | None = Field(
        default=None, description="a job that waits longer for its worker is cancelled"
    )
    environment: Literal["production", "staging"] = "production"
    jupyterhub: str = Field(
        default="https://jupyterhub.ilabt.imec.be/",
        pattern=wording.pattern(r"^https://\S+$", "a URL that begins with https://"),
        description="what `gpubed open` opens",
    )
