"""The faults of the mock engine: which assertion each one must trip, in which check.

The tests demand that this table covers every `expect` of every check, and that each fault trips exactly its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """ident: the assertion that must fail; check: `file::test`; select: a parametrization's id, when it matters.

    planted: the mock's model (else capable); supervised: something restarts a killed child.
    """

    name: str
    ident: str
    check: str
    select: str = ""
    planted: bool = True
    supervised: bool = False


def _f(
    name: str, ident: str, check: str, select: str = "", *, planted: bool = True, supervised: bool = False
) -> Fault:
    file, _, test = check.partition("::")
    return Fault(name, ident, f"test_{file}.py::test_{test}", select, planted, supervised)


_TABLE = (
    _f("restarted", "startup.restarts", "startup::no_restart"),
    _f("traceback-in-log", "startup.traceback", "startup::no_traceback"),
    _f("health-503", "startup.health", "startup::health"),
    _f("models-empty", "startup.models", "startup::models"),
    _f("no-server-info", "startup.info", "startup::server_info"),
    _f("no-metrics", "startup.metrics", "startup::metrics"),
    _f("tiny-pool", "startup.pool", "startup::context_and_pool"),
    _f("streams-clamped", "startup.clamp", "startup::running_requests"),
    _f("other-context", "startup.context", "startup::context_length"),
    _f("moved-revision", "startup.revision", "startup::revisions"),
    _f("no-speculation", "startup.algorithm", "startup::speculation"),
    _f("other-draft-tokens", "startup.draft_tokens", "startup::speculation"),
    _f("guard-tripped", "startup.guard", "startup::guard_is_quiet"),
    _f("capture-unfinished", "fast.unfinished", "fast_path::target_graph"),
    _f("no-target-graph", "fast.target_graph", "fast_path::target_graph"),
    _f("draft-graph-off", "fast.draft_graph_off", "fast_path::draft_graph"),
    _f("no-draft-graph", "fast.draft_graph", "fast_path::draft_graph"),
    _f("head-eager", "fast.eager", "fast_path::selector_in_graph"),
    _f("selector-silent", "fast.selector", "fast_path::selector_in_graph"),
    _f("head-eager", "fast.head_dense", "fast_path::quantized_head"),
    _f("not-quantized", "fast.head_quant", "fast_path::quantized_head"),
    _f("head-unpacked", "fast.head_held", "fast_path::head_as_held"),
    _f("draft-inherits", "fast.draft_quant", "fast_path::draft_quantization"),
    _f("kv-bf16", "fast.kv_dtype", "fast_path::kv_dtype"),
    _f("attention-triton", "fast.attention", "fast_path::backends"),
    _f("gemm-marlin", "fast.gemm", "fast_path::backends"),
    _f("fused-kv-failed", "fast.fallback", "fast_path::no_fallback"),
    _f("autotune-unfinished", "fast.autotune", "fast_path::autotune_ended"),
    _f("decode-eager", "fast.graph_used", "fast_path::decode_uses_graph"),
    _f("empty-answers", "chat.visible", "chat::visible_answer"),
    _f("markup-leaks", "chat.markup", "chat::visible_answer"),
    _f("bang-answers", "chat.garbage", "chat::visible_answer"),
    _f("other-answer", "chat.planted", "chat::planted_answer"),
    _f("usage-missing", "chat.usage", "chat::usage"),
    _f("finish-stop", "chat.finish", "chat::usage"),
    _f("answers-drift", "chat.repeat", "chat::greedy_repeats"),
    _f("no-done", "chat.done", "chat::stream_is_the_same"),
    _f("chunks-lost", "chat.stream", "chat::stream_is_the_same"),
    _f("stream-usage-missing", "chat.stream_usage", "chat::stream_is_the_same"),
    _f("stop-ignored", "chat.stop", "chat::stop_string"),
    _f("one-choice", "chat.n", "chat::several_choices"),
    _f("sampled-garbage", "chat.sampled", "chat::sampling"),
    _f("system-refused", "chat.system_mid", "chat::system_in_the_middle"),
    _f("completions-empty", "chat.completions", "chat::completions"),
    _f("messages-broken", "chat.messages", "chat::anthropic_messages"),
    _f("role-missing", "chat.openai", "chat::official_client"),
    _f("no-tool-calls", "tools.required", "tools::required"),
    _f("arguments-broken", "tools.arguments", "tools::required"),
    _f("tool-finish-stop", "tools.finish", "tools::required"),
    _f("wrong-tool", "tools.named", "tools::named"),
    _f("no-tool-calls", "tools.streamed", "tools::streamed"),
    _f("pieces-lost", "tools.stream_join", "tools::streamed"),
    _f("arguments-buffered", "tools.pieces", "tools::streamed"),
    _f("one-call", "tools.parallel", "tools::parallel", planted=False),
    _f("tools-ignored", "tools.auto", "tools::auto", planted=False),
    _f("none-ignored", "tools.none", "tools::none"),
    _f("tool-turn-400", "tools.result", "tools::result_turn"),
    _f("schema-ignored", "json.schema", "json_schema::strict_schema"),
    _f("schema-broken-streamed", "json.streamed", "json_schema::streamed_schema"),
    _f("schema-broken-sampled", "json.sampled", "json_schema::sampled_schema"),
    _f("regex-ignored", "json.regex", "json_schema::regex"),
    _f("bad-schema-500", "json.bad_schema", "json_schema::bad_schema"),
    _f("bad-schema-sticks", "json.after_bad", "json_schema::bad_schema"),
    _f("thoughts-lost", "reasoning.split", "reasoning::split"),
    _f("think-tags-leak", "reasoning.tags", "reasoning::split"),
    _f("thoughts-unsplit-streamed", "reasoning.streamed", "reasoning::streamed"),
    _f("thinks-anyway", "reasoning.off", "reasoning::off"),
    _f("effort-max-400", "reasoning.effort", "reasoning::effort", "max"),
    _f("effort-low-empty", "reasoning.effort_text", "reasoning::effort", "low"),
    _f("eight-tokens-at-least", "bound.one", "boundaries::one_token"),
    _f("edge-dead-zone", "bound.edge", "boundaries::up_to_the_edge"),
    _f("truncates-silently", "bound.too_long", "boundaries::prompt_too_long"),
    _f("refusal-without-figures", "bound.reason", "boundaries::prompt_too_long"),
    _f("sum-500", "bound.sum", "boundaries::sum_too_long"),
    _f("empty-answers", "bound.alive", "boundaries::alive_after"),
    _f("logprobs-short", "logprobs.count", "logprobs::chat_logprobs"),
    _f("logprobs-nan", "logprobs.shape", "logprobs::chat_logprobs"),
    _f("logprobs-shifted", "logprobs.greedy", "logprobs::chat_logprobs"),
    _f("head-swapped", "logprobs.tokens", "logprobs::reference"),
    _f("scale-doubled", "logprobs.mean", "logprobs::reference"),
    _f("row-shifted", "logprobs.max", "logprobs::reference"),
    _f("head-swapped", "agree.planted", "agreement::planted_exact"),
    _f("accept-unreported", "accept.reported", "acceptance::by_family", "prose"),
    _f("accept-one", "accept.floor", "acceptance::by_family", "prose"),
    _f("accept-four", "accept.planted", "acceptance::planted_length"),
    _f("accept-decays", "accept.depth", "acceptance::with_depth"),
    _f("garbage-in-company", "garbage.text", "concurrency::no_garbage"),
    _f("crossed-in-company", "garbage.batch", "concurrency::every_batch_size"),
    _f("crossed-in-company", "garbage.company", "concurrency::alone_and_together"),
    _f("forgets-the-middle", "long.needle", "long_context::needle", "50", planted=False),
    _f("prompt-miscounted", "long.counted", "long_context::depths"),
    _f("no-prefix-cache", "long.cached", "long_context::prefix_cache"),
    _f("three-is-too-much", "long.three", "long_context::three_at_once"),
    _f("load-400", "load.errors", "workloads::workload", "1000-128-x4"),
    _f("load-short", "load.tokens", "workloads::workload", "1000-128-x4"),
    _f("never-cancels", "cancel.frees", "cancellation::closed_stream"),
    _f("answers-drift", "cancel.next", "cancellation::next_is_unharmed"),
    _f("starves-beside", "cancel.beside", "cancellation::next_is_unharmed"),
    _f("abort-ignored", "cancel.abort", "cancellation::abort_request"),
    _f("hostile-kills", "hostile.alive", "hostile::hostile", "n-129"),
    _f("hostile-drops", "hostile.answered", "hostile::hostile", "n-129"),
    _f("one-token-loops", "soak.text", "soak::hours"),
    _f("accept-fades", "soak.acceptance", "soak::hours"),
    _f("memory-creeps", "soak.memory", "soak::memory"),
    _f("stays-down", "recovery.comeback", "recovery::killed_child_comes_back", supervised=True),
    _f("empty-after-restart", "recovery.answers", "recovery::killed_child_comes_back", supervised=True),
    _f("stays-green", "recovery.noticed", "recovery::killed_child_is_noticed"),
    _f("compiles-again", "boot2.log", "second_boot::compiles_nothing"),
    _f("compiles-silently", "boot2.files", "second_boot::compiles_nothing"),
    _f("other-after-restart", "boot2.same", "second_boot::compiles_nothing"),
    _f("offline-fails", "offline.start", "offline_boot::starts_offline"),
    _f("offline-leaks", "offline.cut", "offline_boot::starts_offline"),
    _f("offline-silent", "offline.tokens", "offline_boot::starts_offline"),
    _f("control-differs", "control.tokens", "control_arm::control_arm"),
    _f("state-dropped", "control.logprobs", "control_arm::control_arm"),
)  # fmt: skip

FAULTS = tuple(_TABLE)
NAMES = tuple(sorted({f.name for f in FAULTS}))
