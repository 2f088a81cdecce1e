"""The services the program talks to: Pulumi's ResourceMonitor and Engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2  # type: ignore[import-untyped]

from gpubed.core.errors import GpubedError
from gpubed.engines.embedded import goal, meeting, urn
from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.protocol import (
    engine_pb2,
    engine_pb2_grpc,
    provider_pb2,
    resource_pb2,
    resource_pb2_grpc,
)
from gpubed.engines.embedded.provider import CHANNEL_OPTIONS
from gpubed.engines.embedded.registration import Registrar
from gpubed.engines.embedded.run import Halted, Run
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.values import Properties, Secret, from_struct, to_struct
from gpubed.testbeds.driver import UNKNOWN_TEXT

_TERMINATED = "Resource monitor has terminated, shutting down"
_SEVERITIES = {
    engine_pb2.INFO: "info",
    engine_pb2.WARNING: "warning",
    engine_pb2.ERROR: "error",
}
# All that the SDK would otherwise refuse itself, with advice to update the CLI:
# what is not implemented is refused here, by name.
_FEATURES = [
    value
    for name, value in resource_pb2.ResourceMonitorFeature.items()
    if name.removeprefix("RESOURCE_MONITOR_FEATURE_")
    in {
        "SECRETS",
        "RESOURCE_REFERENCES",
        "ALIAS_SPECS",
        "DELETED_WITH",
        "REPLACE_WITH",
        "TRANSFORMS",
        "INVOKE_TRANSFORMS",
        "PARAMETERIZATION",
        "RESOURCE_HOOKS",
        "ERROR_HOOKS",
        "STATE_MIGRATIONS",
    }
]


class Monitor(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """Serves one program on a private socket.

    Args:
        run: The operation.
        registrar: Decides about registrations.
        config: The stack's configuration.
        root: The project's folder.
    """

    def __init__(self, run: Run, registrar: Registrar, config: Properties, root: Path) -> None:
        self._root = root
        self._run = run
        self._registrar = registrar
        self._config = config
        self.outputs: Properties | None = None
        self.finished = threading.Event()
        self._may_exit = threading.Event()
        self.address = f"unix:{run.sockets / meeting.ENGINE}"
        # Every registration in flight holds one thread until its step is done.
        pool = ThreadPoolExecutor(4 * run.parallel + 16, "monitor")
        self._server = grpc.server(pool, options=CHANNEL_OPTIONS)
        resource_pb2_grpc.add_ResourceMonitorServicer_to_server(self, self._server)
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def let_exit(self) -> None:
        """Lets the waiting program end."""
        self._may_exit.set()

    def close(self) -> None:
        """Stops serving."""
        self._may_exit.set()
        # A Ctrl-C, which only the main thread sees, would leave gRPC half shut down.
        with ThreadPoolExecutor(1, "shutdown") as aside:
            aside.submit(lambda: self._server.stop(0.2).wait()).result()

    # --- ResourceMonitor

    def GetDeploymentInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Tells the SDK what it may ask for."""
        secret = [key for key, value in self._config.items() if isinstance(value, Secret)]
        return resource_pb2.DeploymentInfo(
            project=self._run.project,
            stack=self._run.stack,
            organization="organization",
            configSecretKeys=secret,
            dryRun=self._run.preview,
            parallel=self._run.parallel,
            supportedFeatures=_FEATURES,
        )

    def RegisterResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Carries out a registration."""
        try:
            state = self._registrar.register(goal.from_request(request, self._root))
        except Exception as error:
            self._abort(context, error)
        return resource_pb2.RegisterResourceResponse(
            urn=state.urn,
            id=_shown_id(state),
            object=to_struct(state.outputs if state.custom else {}),
        )

    def ReadResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Reads a resource that the stack does not manage."""
        try:
            state = self._registrar.read(goal.from_read_request(request, self._root))
        except Exception as error:
            self._abort(context, error)
        return resource_pb2.ReadResourceResponse(
            urn=state.urn, id=_shown_id(state), properties=to_struct(state.outputs)
        )

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Takes a component's outputs; the stack's are kept for the end of the run."""
        try:
            self._take_outputs(request.urn, from_struct(request.outputs))
        except Exception as error:
            self._abort(context, error)
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers only what rehydrates a resource reference."""
        if request.tok != "pulumi:pulumi:getResource":
            self._abort(context, Refusal(f"the function {request.tok}", "the program"))
        state = self._registrar.states.get(from_struct(request.args)["urn"])
        if state is None:
            self._abort(context, Refusal("references to resources of other stacks", "the program"))
        found = {"urn": state.urn, "id": _shown_id(state), "state": state.outputs}
        return provider_pb2.InvokeResponse(**{"return": to_struct(found)})

    def SignalAndWaitForShutdown(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Notes that the program is done and keeps it until the run is."""
        self.finished.set()
        self._may_exit.wait()
        return empty_pb2.Empty()

    def SupportsFeature(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Serves SDKs that do not know `GetDeploymentInfo`."""
        return resource_pb2.SupportsFeatureResponse(hasSupport=False)

    def Call(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal(f"the method {request.tok}", "the program"))

    def RegisterStackTransform(self, _request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal("transforms", "the stack"))

    def RegisterStackInvokeTransform(self, _request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal("transforms", "the stack"))

    def RegisterResourceHook(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal("resource hooks", request.name))

    def RegisterErrorHook(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal("error hooks", request.name))

    def RegisterPackage(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        self._abort(context, Refusal(f"the provider package {request.name}", "the program"))

    # --- Engine

    def Log(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Passes a message on; debug output and the echo of our own abort are dropped."""
        severity = _SEVERITIES.get(request.severity)
        if severity and _TERMINATED not in request.message:
            self._run.reporter.log(severity, request.message.rstrip(), request.urn or None)
        return empty_pb2.Empty()

    def RequirePulumiVersion(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Accepts any range: there is no CLI whose version could be wrong."""
        return engine_pb2.RequirePulumiVersionResponse()

    # ---

    def _take_outputs(self, name: str, outputs: Properties) -> None:
        if urn.type_of(name) == urn.STACK_TYPE:
            self.outputs = outputs
            return
        state = self._registrar.states[name]
        if state.outputs != outputs:
            state.outputs = outputs
            self._run.journal.touch(state)

    def _abort(self, context: Any, error: Exception) -> NoReturn:
        if not isinstance(error, Halted):
            self._run.stop(error)
        if not isinstance(error, (Halted, GpubedError)):
            self._run.reporter.log("error", f"internal error: {error!r}")
        context.abort(grpc.StatusCode.UNAVAILABLE, _TERMINATED)
        raise error


def _shown_id(state: State) -> str:
    return "" if state.id == UNKNOWN_TEXT else state.id
