"""The services the program talks to: Pulumi's ResourceMonitor and Engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2

from gpubed.core.errors import GpubedError
from gpubed.engines.embedded import goal
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
from gpubed.engines.embedded.state import STACK_TYPE, State, type_of
from gpubed.engines.embedded.values import Properties, Secret, from_struct, to_struct
from gpubed.testbeds.driver import UNKNOWN_TEXT

_TERMINATED = "Resource monitor has terminated, shutting down"
_SEVERITIES = {
    engine_pb2.INFO: "info",
    engine_pb2.WARNING: "warning",
    engine_pb2.ERROR: "error",
}
# The SDK refuses a feature that is not advertised, with the advice to update the CLI.
_FEATURES = [
    resource_pb2.ResourceMonitorFeature.Value(f"RESOURCE_MONITOR_FEATURE_{name}")
    for name in (
        *("SECRETS", "RESOURCE_REFERENCES", "ALIAS_SPECS", "DELETED_WITH", "REPLACE_WITH"),
        *("TRANSFORMS", "INVOKE_TRANSFORMS", "PARAMETERIZATION", "RESOURCE_HOOKS"),
        *("ERROR_HOOKS", "STATE_MIGRATIONS"),
    )
]
_REFUSED: dict[str, Callable[[Any], tuple[str, str]]] = {
    "ReadResource": lambda r: ("reading resources (`get`, StackReference)", r.name),
    "Call": lambda r: (f"the method {r.tok}", "the program"),
    "RegisterStackTransform": lambda _: ("transforms", "the stack"),
    "RegisterStackInvokeTransform": lambda _: ("transforms", "the stack"),
    "RegisterResourceHook": lambda r: ("resource hooks", r.name),
    "RegisterErrorHook": lambda r: ("error hooks", r.name),
    "RegisterPackage": lambda r: (f"the provider package {r.name}", "the program"),
}


class Monitor(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """Serves one program on a private socket."""

    def __init__(
        self, run: Run, registrar: Registrar, config: Properties, root: Path, socket: Path
    ) -> None:
        self._root, self._run, self._registrar, self._config = root, run, registrar, config
        self.outputs: Properties | None = None
        self.finished, self.may_exit = threading.Event(), threading.Event()
        self.address = f"unix:{socket}"
        for method, refused in _REFUSED.items():
            setattr(self, method, self._refusing(refused))
        # Every registration in flight holds one thread until its step has ended.
        pool = ThreadPoolExecutor(4 * run.parallel + 16, "monitor")
        self._server = grpc.server(pool, options=CHANNEL_OPTIONS)
        resource_pb2_grpc.add_ResourceMonitorServicer_to_server(self, self._server)
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def close(self) -> None:
        """Stop serving."""
        self.may_exit.set()
        # Ctrl-C, which only the main thread sees, would leave gRPC half shut down.
        with ThreadPoolExecutor(1, "shutdown") as aside:
            aside.submit(lambda: self._server.stop(0.2).wait()).result()

    def GetDeploymentInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Return the features that the SDK may use."""
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
        """Create, update or keep the registered resource."""
        try:
            state = self._registrar.register(goal.from_request(request, self._root))
        except Exception as error:
            self._abort(context, error)
        return resource_pb2.RegisterResourceResponse(
            urn=state.urn,
            id=_shown_id(state),
            object=to_struct(state.outputs if state.custom else {}),
        )

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Store a component's outputs; the stack's own are kept for the end of the run."""
        try:
            outputs = from_struct(request.outputs)
            if type_of(request.urn) == STACK_TYPE:
                self.outputs = outputs
            elif (state := self._registrar.states[request.urn]).outputs != outputs:
                state.outputs = outputs
                self._run.journal.touch(state)
        except Exception as error:
            self._abort(context, error)
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer only the call that rehydrates a resource reference."""
        if request.tok != "pulumi:pulumi:getResource":
            self._abort(context, Refusal(f"the function {request.tok}", "the program"))
        state = self._registrar.states.get(from_struct(request.args)["urn"])
        if state is None:
            self._abort(context, Refusal("references to resources of other stacks", "the program"))
        found = {"urn": state.urn, "id": _shown_id(state), "state": state.outputs}
        return provider_pb2.InvokeResponse(**{"return": to_struct(found)})

    def SignalAndWaitForShutdown(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Note that the program has ended; answer once the run has."""
        self.finished.set()
        self.may_exit.wait()
        return empty_pb2.Empty()

    def SupportsFeature(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Answer SDKs that lack `GetDeploymentInfo`."""
        return resource_pb2.SupportsFeatureResponse(hasSupport=False)

    def Log(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Pass a message on, except debug output and the echo of `_abort`."""
        severity = _SEVERITIES.get(request.severity)
        if severity and _TERMINATED not in request.message:
            self._run.reporter.log(severity, request.message.rstrip(), request.urn or None)
        return empty_pb2.Empty()

    def RequirePulumiVersion(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Accept any version range: there is no CLI."""
        return engine_pb2.RequirePulumiVersionResponse()

    def _refusing(self, refused: Callable[[Any], tuple[str, str]]) -> Callable[[Any, Any], Any]:
        return lambda request, context: self._abort(context, Refusal(*refused(request)))

    def _abort(self, context: Any, error: Exception) -> NoReturn:
        if not isinstance(error, Halted):
            self._run.stop(error)
        if not isinstance(error, (Halted, GpubedError)):
            self._run.reporter.log("error", f"internal error: {error!r}")
        context.abort(grpc.StatusCode.UNAVAILABLE, _TERMINATED)
        raise error


def _shown_id(state: State) -> str:
    return "" if state.id == UNKNOWN_TEXT else state.id
