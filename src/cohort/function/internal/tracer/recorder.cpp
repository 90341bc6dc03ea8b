// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/internal/tracer/recorder.h"

#include <c10/core/GradMode.h>

#include "cohort/function/internal/allow_list.h"
#include "cohort/function/internal/tracer/arguments.h"
#include "cohort/function/internal/tracer/call_site.h"
#include "cohort/function/internal/tracer/key.h"
#include "cohort/function/internal/tracer/ops.h"

namespace cohort::function {
namespace {

// Pushes a value for a scope.
class Entered {
 public:
  Entered(std::vector<std::string>& names, const std::string& name) : names_(names) {
    names_.push_back(name);
  }
  ~Entered() { names_.pop_back(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  std::vector<std::string>& names_;
};

// Remembers the first entry of the fallback on the stack.
class FirstFrame {
 public:
  FirstFrame(const void*& slot, const void* frame) : slot_(slot), is_first_(slot == nullptr) {
    if (is_first_) slot_ = frame;
  }
  ~FirstFrame() {
    if (is_first_) slot_ = nullptr;
  }
  FirstFrame(const FirstFrame&) = delete;
  FirstFrame& operator=(const FirstFrame&) = delete;

 private:
  const void*& slot_;
  bool is_first_;
};

// A flag that is up for a scope.
class Inside {
 public:
  explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
  ~Inside() { flag_ = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool& flag_;
};

std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op,
                                          const torch::jit::Stack& stack) {
  std::size_t count = op.schema().arguments().size();
  return {stack.data() + stack.size() - count, count};
}

}  // namespace

Recorder::Recorder(const TraceOptions& options, int pass, std::shared_ptr<MemoryWatch> memory)
    : options_(options), pass_(pass), memory_(std::move(memory)) {
  if (pass > 0) state_.reseed_default_generator();
  for (const at::Tensor& leaf : options.leaves) state_.hide_gradient(leaf);
}

void Recorder::fail(std::string_view what, const std::string& reason) {
  std::ostringstream text;
  text << "[function.trace] cannot trace '" << what << "': " << reason;
  if (!composites_.empty()) {
    text << " [inside ";
    for (std::size_t i = 0; i < composites_.size(); ++i)
      text << (i > 0 ? " > " : "") << composites_[i];
    text << ']';
  }
  text << "; op #" << draws_.size() + program_.ops.size() << " of the trace of '" << options_.name
       << '\'';
  if (!program_.ops.empty()) text << ", after " << program_.ops.back().name;
  if (options_.names_call_site) text << call_site(outermost_frame_);
  failure_ = Error(ErrorCode::invalid_argument, text.str());
  throw *failure_;
}

void Recorder::on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  FirstFrame first(outermost_frame_, __builtin_frame_address(0));
  if (failure_) throw *failure_;
  // The autocast kernel casts its arguments and calls the op again.
  if (keys.has_any(c10::autocast_dispatch_keyset)) return op.redispatchBoxed(keys, stack);
  const std::string& name = op.operator_name().name;
  if (is_inside_op_) {
    // Autograd's kernel of an in-place op saves a clone() of what the op overwrites. What runs
    // below autograd is the op's own work.
    if (name == "aten::clone" && keys.has_any(c10::autograd_dispatch_keyset))
      return record(op, keys, stack);
    return run(op, keys, stack);
  }
  if (decomposes(op, keys)) {
    Entered composite(composites_, name);
    if (run_without_checks(op, *stack)) return;
    return op.redispatchBoxed(keys, stack);
  }
  record(op, keys, stack);
}

void Recorder::expect_recordable(const c10::OperatorHandle& op, Arguments arguments) const {
  const std::string& name = op.operator_name().name;
  if (returns_host_value(op.schema())) {
    refuse(
        "its result is a host value that depends on tensor data; a traced function cannot branch "
        "on it or compute with it on the host: keep it a tensor (torch::where, clamp), or do this "
        "outside the function");
  }
  if (has_dynamic_shape(op, arguments)) {
    refuse(
        "the shape of its result depends on tensor data, and a program has fixed shapes; use "
        "torch::where or multiply by the mask");
  }
  if (!is_allowed_op(name)) refuse("the operator is not on the list of those that a server runs");
}

void Recorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kTraceKey);
  op.redispatchBoxed(keys, stack);
}

void Recorder::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  std::vector<at::Tensor> written;
  Op recorded;
  Arguments arguments = arguments_of(op, *stack);
  if (is_metadata_query(op, arguments)) return run(op, keys, stack);
  guarded(name, [&] {
    recorded = encode(op, arguments);
    written = prepare_memory(op, arguments);
  });
  bool is_watched = !written.empty() && c10::GradMode::is_enabled() && !is_inside_op_;
  if (is_watched) {
    Inside inside(is_inside_op_);
    op.redispatchBoxed(keys, stack);
  } else {
    run(op, keys, stack);
  }
  for (const at::Tensor& tensor : written) values_.refresh(tensor);
  recorded.outs = number_results(op.schema().returns().size(), *stack);
  if (!written.empty()) recorded.flags |= Op::writes;
  if (makes_memory_to_fill(name)) {
    watch_memory(stack->back().toTensor(), recorded.outs.back().ids.back(),
                 makes_unwritten_memory(name));
  }
  program_.ops.push_back(std::move(recorded));
}

Op Recorder::encode(const c10::OperatorHandle& op, Arguments arguments) {
  Op recorded;
  recorded.name = op.operator_name().name;
  recorded.overload = op.operator_name().overload_name;
  const auto& schema = op.schema().arguments();
  // What is wrong with the op itself is said before what is wrong with its arguments.
  Op canonical;
  canonical.name = recorded.name;
  canonical.args.resize(schema.size());
  canonicalise(canonical);
  if (canonical.name == recorded.name) expect_recordable(op, arguments);
  for (std::size_t i = 0; i < schema.size(); ++i) {
    recorded.args.push_back(encode_argument(
        schema[i], arguments[i], [this](const at::Tensor& tensor) { return value_of(tensor); }));
  }
  canonicalise(recorded);
  if (is_random(op)) {
    recorded.flags |= Op::random;
    program_.is_random = true;
  }
  return recorded;
}

// Checks the writes, saves what they destroy, and returns the written tensors.
std::vector<at::Tensor> Recorder::prepare_memory(const c10::OperatorHandle& op,
                                                 Arguments arguments) {
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool is_written = writes_argument(op, arguments, i);
    if (!is_written && only_views_argument(op, i)) continue;
    bool is_overwritten = is_written && overwrites_argument(op, i);
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (is_written) {
        note_write(tensor);
        written.push_back(tensor);
      }
      note_content_use(tensor, is_written, is_overwritten);
    });
  }
  return written;
}

std::vector<Out> Recorder::number_results(std::size_t count, const torch::jit::Stack& stack) {
  std::vector<Out> outs;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    Out out;
    if (stack[i].isTensor() || stack[i].isNone()) {
      out.ids.push_back(stack[i].isTensor() ? number_result(stack[i].toTensor()) : -1);
    } else {
      out.is_list = true;
      for (const c10::IValue& item : stack[i].toListRef()) {
        out.ids.push_back(item.isTensor() ? number_result(item.toTensor()) : -1);
      }
    }
    outs.push_back(std::move(out));
  }
  return outs;
}

int Recorder::number_result(const at::Tensor& result) {
  if (!result.defined()) return -1;
  int same = values_.find_same(result);
  return same >= 0 ? same : values_.add(result, Origin::result);
}

}  // namespace cohort::function
