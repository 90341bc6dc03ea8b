// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/recorder.h"

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>

#include "cohort/core/thread_value.h"
#include "cohort/core/torch_error.h"
#include "cohort/function/program/op_memory.h"
#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/ops.h"
#include "cohort/function/tracer/rewrites/rewrites.h"

namespace cohort::function {
namespace {

// Pushes a name for a scope.
auto entered(std::vector<std::string>& names, const std::string& name) {
  names.push_back(name);
  return c10::make_scope_exit([&names] { names.pop_back(); });
}

// nullptr: the tensor has no memory, or memory of no bytes.
const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

std::vector<const c10::StorageImpl*> memory_of(std::span<const c10::IValue> arguments) {
  std::vector<const c10::StorageImpl*> memory;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor) { memory.push_back(memory_of(tensor)); });
  }
  return memory;
}

std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op,
                                          const torch::jit::Stack& stack) {
  std::size_t count = op.schema().arguments().size();
  return {stack.data() + stack.size() - count, count};
}

// LibTorch's own error is a page long for zeros({3}, kCUDA), and names no remedy.
void expect_present_device(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isDevice() || has_device(arguments[i].toDevice().type())) continue;
    refuse("expected the CPU, got the device ", arguments[i].toDevice(), " (argument '",
           op.schema().arguments()[i].name(),
           "'), which this process does not have; workers run steps on the CPU: leave out .cuda(), "
           ".to(torch::kCUDA) and the device of torch::TensorOptions");
  }
}

// Whether some argument is a floating-point or complex tensor other than a number of the host.
bool has_real_argument(std::span<const c10::IValue> arguments) {
  bool has_real = false;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      has_real = has_real || (!is_number && (tensor.is_floating_point() || tensor.is_complex()));
    });
  }
  return has_real;
}

}  // namespace

Recorder::Recorder(const TraceOptions& options, int pass, Change change,
                   std::shared_ptr<MemoryWatch> memory)
    : options_(options), pass_(pass), change_(change), memory_(std::move(memory)) {
  if (pass > 0) state_.reseed_default_generator();
  random_state_ = state_.random_state();
  for (const at::Tensor& leaf : options.leaves) state_.hide_gradient(leaf);
  for (const at::Tensor& variable : options.variables) state_.hide_gradient(variable);
}

void Recorder::change_variables(const std::vector<at::Tensor>& variables) {
  for (const at::Tensor& variable : variables) state_.change_values(variable, change_);
}

std::vector<at::Tensor> Recorder::variables() const {
  std::vector<at::Tensor> tensors;
  for (const VariableUse& use : variables_) tensors.push_back(use.tensor);
  return tensors;
}

void Recorder::on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack, const void* frame) {
  // The first entry of the fallback on the stack, until it returns.
  const internal::ScopedValue first(outermost_frame_,
                                    outermost_frame_ == nullptr ? frame : outermost_frame_);
  if (failure_) throw *failure_;
  has_run_script_ = has_run_script_ || !torch::jit::currentCallstack().empty();
  is_op_sparse_ = keys.has(c10::DispatchKey::SparseCPU);
  const std::size_t size = stack->size();
  try {
    dispatch(op, keys, stack);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    note_failure(op, stack->size() == size ? arguments_of(op, *stack) : Arguments(), error);
    throw;
  }
}

void Recorder::dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  // The autocast kernel casts its arguments and calls the op again.
  if (keys.has_any(c10::autocast_dispatch_keyset)) return op.redispatchBoxed(keys, stack);
  const std::string& name = op.operator_name().name;
  if (is_inside_op_) {
    // Autograd's kernel of an in-place op saves a clone() of the values that the op overwrites. Ops
    // below autograd are the op's own work.
    if (name == "aten::clone" && keys.has_any(c10::autograd_dispatch_keyset))
      return record(op, keys, stack);
    return run(op, keys, stack);
  }
  guarded(name, [&] { expect_present_device(op, arguments_of(op, *stack)); });
  cut_graphs_of_reads(op, *stack);
  bool is_composite = decomposes(op, keys) && !is_recorded_whole(op);
  if (is_composite) note_composite(op, arguments_of(op, *stack));
  if (is_rewritten(op, *stack)) return;
  if (is_composite) {
    const auto composite = entered(composites_, name);
    guarded(name, [&] { expect_fixed_host_reads(op, arguments_of(op, *stack)); });
    std::optional<RunningAverages> averages = running_averages_of(op, arguments_of(op, *stack));
    const internal::ScopedValue inside(averages_, averages ? std::move(averages) : averages_);
    return op.redispatchBoxed(keys, stack);
  }
  record(op, keys, stack);
}

bool Recorder::is_rewritten(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  guarded(op.operator_name().name, [&] { expect_own_memory_grows(op, arguments_of(op, stack)); });
  const std::string inside = composites_.empty() ? "" : composites_.back();
  const auto composite = entered(composites_, op.operator_name().name);
  return rewrite(op, inside, stack);
}

// A program's plan copies values that a later op overwrites, so it must know which ones share
// memory.
void Recorder::expect_known_aliases(const c10::OperatorHandle& op,
                                    const std::vector<const c10::StorageImpl*>& memory,
                                    const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().returns().size();
  for (std::size_t i = 0; i < count; ++i) {
    if (may_be_alias(op, i)) continue;
    for_each_tensor(stack[stack.size() - count + i], [&](const at::Tensor& result) {
      const c10::StorageImpl* own = memory_of(result);
      if (own == nullptr || std::find(memory.begin(), memory.end(), own) == memory.end()) return;
      refuse(
          "its result shares the memory of an argument, which this library does not know of the "
          "operator; call it on a clone(), and report this");
    });
  }
}

// as_strided counts its offset from the start of the memory, and on a server the tensor has another
// offset: view_of() and capture() express the offset relative to a value of the program, or refuse.
bool Recorder::is_recorded_where_used(const c10::OperatorHandle& op, Arguments arguments) {
  if (op.operator_name().name != "aten::as_strided") return false;
  const TracedMemory* memory = values_.memory_of(arguments[0].toTensor());
  return memory != nullptr && memory->origin != Origin::result;
}

void Recorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kTraceKey);
  op.redispatchBoxed(keys, stack);
}

void Recorder::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  std::vector<Write> written;
  std::vector<bool> are_fixed;
  Op recorded;
  Arguments arguments = arguments_of(op, *stack);
  if (is_metadata_query(name)) return run(op, keys, stack);
  guarded(name, [&] {
    expect_fixed_host_reads(op, arguments);
    recorded = encode(op, arguments);
    written = prepare_memory(op, arguments);
    are_fixed = fixed_results(op, arguments);
    if ((recorded.flags & Op::random) != 0) expect_random_state();
  });
  if (is_recorded_where_used(op, arguments)) return run(op, keys, stack);
  const bool has_real_input = has_real_argument(arguments);
  const std::vector<const c10::StorageImpl*> memory = memory_of(arguments);
  running_ = recorded;
  bool is_watched = !written.empty() && c10::GradMode::is_enabled() && !is_inside_op_;
  if (is_watched) {
    const internal::ScopedValue inside(is_inside_op_, true);
    op.redispatchBoxed(keys, stack);
  } else {
    run(op, keys, stack);
  }
  running_.reset();
  if ((recorded.flags & Op::random) != 0) random_state_ = state_.random_state();
  for (const Write& write : written) values_.refresh(write.tensor);
  guarded(name, [&] {
    expect_explicit_dtype(op, *stack, has_real_input, recorded);
    expect_known_aliases(op, memory, *stack);
  });
  recorded.outs = number_results(op.schema().returns().size(), *stack);
  const bool is_fixed = std::find(are_fixed.begin(), are_fixed.end(), false) == are_fixed.end();
  for (const Write& write : written) note_written(write.tensor, is_fixed, write.is_overwritten);
  for (std::size_t i = 0; i < are_fixed.size(); ++i) {
    for_each_tensor((*stack)[stack->size() - are_fixed.size() + i], [&](const at::Tensor& result) {
      note_made(result, name, are_fixed[i]);
      if (has_size_of_data(op) && !is_fixed) note_size_of_data(result);
    });
  }
  if (!written.empty()) recorded.flags |= Op::writes;
  if (makes_memory_to_fill(name)) {
    watch_memory(stack->back().toTensor(), recorded.outs.back().ids.back(),
                 makes_unwritten_memory(name));
  }
  program_.ops.push_back(std::move(recorded));
}

Op Recorder::encode(const c10::OperatorHandle& op, Arguments arguments) {
  Op recorded{.name = op.operator_name().name, .overload = op.operator_name().overload_name};
  const auto& schema = op.schema().arguments();
  // Errors of the op itself are reported before errors of its arguments.
  Op canonical{.name = recorded.name, .args = std::vector<Arg>(schema.size())};
  canonicalise(canonical);
  if (canonical.name == recorded.name) expect_recordable(op, arguments);
  separate_reshaped(op, arguments);
  for (std::size_t i = 0; i < schema.size(); ++i) {
    recorded.args.push_back(encode_argument(
        schema[i], arguments[i], [this](const at::Tensor& tensor) { return value_of(tensor); }));
  }
  canonicalise(recorded);
  if (!c10::GradMode::is_enabled()) recorded.flags |= Op::without_gradients;
  if (is_random(op)) {
    recorded.flags |= Op::random;
    program_.is_random = true;
  }
  return recorded;
}

// Notes the call itself, as the ops inside may not run: the composite may throw for a host value.
void Recorder::note_composite(const c10::OperatorHandle& op, Arguments arguments) {
  Op call{.name = op.operator_name().name, .overload = op.operator_name().overload_name};
  const auto& schema = op.schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    try {
      call.args.push_back(
          encode_argument(schema[i], arguments[i], [](const at::Tensor&) { return 0; }));
    } catch (const Refusal&) {
      call.args.emplace_back();  // the ops inside report it
    }
  }
  composite_calls_.push_back(std::move(call));
}

// Checks the writes, saves the contents that they destroy, and returns the written tensors.
std::vector<Recorder::Write> Recorder::prepare_memory(const c10::OperatorHandle& op,
                                                      Arguments arguments) {
  std::vector<Write> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool is_written = writes_argument(op, arguments, i);
    if (!is_written && only_views_argument(op, i)) continue;
    bool is_overwritten = is_written && overwrites_argument(op, i);
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (is_written) {
        // A result of an op may get another shape, but not a tensor of the user.
        if (!changes_shape_only(op) || !values_.is_result(tensor))
          note_write(tensor, op, arguments, i);
        written.push_back({tensor, is_overwritten});
      }
      if (changes_shape_only(op) && is_old_gradient(tensor)) return;  // detach_()
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
