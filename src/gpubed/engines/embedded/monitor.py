"""The services the program talks to: Pulumi's ResourceMonitor and Engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2

from gpubed.core.errors import GpubedError
from gpubed.engines.embedded.events import Refusal
from gpubed.engines.embedded.protocol import (
    CHANNEL_OPTIONS,
    engine_pb2,
    engine_pb2_grpc,
    from_struct,
    resource_pb2,
    resource_pb2_grpc,
    to_struct,
)
from gpubed.engines.embedded.registration import Registrar
from gpubed.engines.embedded.run import Halted, Run
from gpubed.engines.embedded.state import STACK_TYPE
from gpubed.engines.embedded.values import Properties

_TERMINATED = "Resource monitor has terminated, shutting down"
_SEVERITIES = {engine_pb2.INFO: "info", engine_pb2.WARNING: "warning", engine_pb2.ERROR: "error"}
# The SDK refuses a feature that is not advertised, with the advice to update the CLI.
_FEATURES = [
    resource_pb2.ResourceMonitorFeature.Value(f"RESOURCE_MONITOR_FEATURE_{name}")
    for name in (
        *("SECRETS", "ALIAS_SPECS", "DELETED_WITH", "REPLACE_WITH"),
        *("TRANSFORMS", "INVOKE_TRANSFORMS", "PARAMETERIZATION", "RESOURCE_HOOKS"),
        *("ERROR_HOOKS", "STATE_MIGRATIONS"),
    )
]
_REFUSED = (
    *("ReadResource", "Invoke", "Call", "RegisterStackTransform", "RegisterStackInvokeTransform"),
    *("RegisterResourceHook", "RegisterErrorHook", "RegisterPackage"),
)


class Monitor(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):  # type: ignore[misc,name-defined]
    """Serves one program on a Unix socket."""

    def __init__(self, run: Run, registrar: Registrar, socket: Path) -> None:
        self._run, self._registrar = run, registrar
        self.outputs: Properties | None = None
        self.finished, self.may_exit = threading.Event(), threading.Event()
        self.address = f"unix:{socket}"
        for method in _REFUSED:
            setattr(self, method, partial(self._refuse, method))
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
        # In another thread: Ctrl-C interrupts the main thread, and would leave gRPC half shut down.
        with ThreadPoolExecutor(1, "shutdown") as aside:
            aside.submit(lambda: self._server.stop(0.2).wait()).result()

    def GetDeploymentInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Return the features that the SDK may use."""
        return resource_pb2.DeploymentInfo(
            project=self._run.project,
            stack=self._run.stack,
            organization="organization",
            dryRun=self._run.preview,
            parallel=self._run.parallel,
            supportedFeatures=_FEATURES,
        )

    def RegisterResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Create, update or keep the registered resource."""
        try:
            state = self._registrar.register(request)
        except Exception as error:
            self._abort(context, error)
        return resource_pb2.RegisterResourceResponse(
            urn=state.urn, id=state.id, object=to_struct(state.outputs if state.custom else {})
        )

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Store a component's outputs; the stack's own are kept for the end of the run."""
        try:
            outputs, state = from_struct(request.outputs), self._registrar.states[request.urn]
            if state.type == STACK_TYPE:
                self.outputs = outputs
            elif state.outputs != outputs:
                state.outputs = outputs
                self._run.journal.touch(state)
        except Exception as error:
            self._abort(context, error)
        return empty_pb2.Empty()

    def SignalAndWaitForShutdown(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Note that the program has ended; answer once the run has."""
        self.finished.set()
        self.may_exit.wait()
        return empty_pb2.Empty()

    def Log(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Pass a message on, except debug output and the echo of `_abort`."""
        severity = _SEVERITIES.get(request.severity)
        if severity and _TERMINATED not in request.message:
            self._run.reporter.log(severity, request.message.rstrip(), request.urn or None)
        return empty_pb2.Empty()

    def _refuse(self, method: str, _request: Any, context: Any) -> NoReturn:
        self._abort(context, Refusal(method, "the program"))

    def _abort(self, context: Any, error: Exception) -> NoReturn:
        if not isinstance(error, Halted):
            self._run.stop(error)
        if not isinstance(error, (Halted, GpubedError)):
            self._run.reporter.log("error", f"internal error: {error!r}")
        context.abort(grpc.StatusCode.UNAVAILABLE, _TERMINATED)
        raise error
