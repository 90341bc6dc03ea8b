// SPDX-License-Identifier: Apache-2.0
// The part of the recorder that tracks the content of memory: whether recorded ops or other code
// wrote it, and whether it depends on anything that differs between runs.
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>

#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/ops.h"
#include "cohort/function/tracer/recorder.h"

namespace cohort::function {
namespace {

// The bytes of a tensor's memory; empty if the CPU cannot read them.
std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return {};
  const c10::Storage& storage = tensor.storage();
  const auto* data = static_cast<const std::byte*>(storage.data());
  return data == nullptr ? std::span<const std::byte>() : std::span(data, storage.nbytes());
}

ByteRange all_of(std::span<const std::byte> bytes) { return {0, bytes.size()}; }

bool covers_its_memory(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  return bytes == tensor.storage().nbytes() && tensor.is_non_overlapping_and_dense();
}

// The tensors that hold the numbers of `tensor`: itself, or those of a sparse one.
template <class Visit>
void for_each_part(const at::Tensor& tensor, const Visit& visit) {
  if (tensor.layout() == c10::kStrided && tensor.has_storage()) return visit(tensor);
  if (tensor.layout() != c10::kSparse) return;
  const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
  visit(sparse->indices());
  visit(sparse->values());
}

// In the order of Origin.
constexpr auto kOriginNames = std::to_array<std::string_view>(
    {"an argument of the function", "a tensor that every call reads again", "an element",
     "a variable", "a tensor made outside the function", "a result", "a result"});

constexpr std::string_view name_of(Origin origin) {
  return kOriginNames.at(static_cast<std::size_t>(origin));
}

[[noreturn]] void refuse_lost_write(const at::Tensor& tensor, const std::string& origin) {
  refuse("the memory of ", TensorSpec::of(tensor).to_string(), ", ", origin,
         ", was written since by code that calls no LibTorch operator the trace could see "
         "(data_ptr(), an accessor, another thread): the write would be lost. Use an operator, or "
         "fill a tensor of its own, fresh from torch::empty, zeros or tensor, by hand");
}

[[noreturn]] void refuse_old_gradient(const std::string& variable) {
  refuse(
      "it uses the gradient that an earlier call of the function has left in .grad of variable '",
      variable,
      "': gradients would add up over the calls of one process, and a server has none of them. "
      "Call minimize(loss) of a cohort optimizer in place of backward(), or take gradients with "
      "compute_gradients() or torch::autograd::grad(); or zero_grad() before backward()");
}

}  // namespace

void Recorder::add_old_gradients(const std::vector<OldGradient>& gradients) {
  Untraced untraced;
  for (const OldGradient& old : gradients) {
    state_.hide_gradient(old.leaf);
    old.leaf.mutable_grad() = old.value;
    // Zeros may be used.
    values_.add(old.value, old.is_zero ? Origin::result : Origin::old_gradient);
    note_content(old.value);
    TracedMemory* memory = values_.memory_of(old.value);
    if (memory == nullptr) continue;
    memory->is_fixed = old.is_zero;
    if (const TracedVariable* variable = variable_at(old.leaf)) memory->maker = variable->name;
  }
}

std::vector<OldGradient> Recorder::old_gradients() {
  Untraced untraced;
  std::vector<OldGradient> all;
  for (const at::Tensor& leaf : state_.leaves_with_gradients()) {
    const at::Tensor& gradient = leaf.grad();
    const std::span<const std::byte> bytes = bytes_of(gradient);
    const bool is_zero =
        !bytes.empty() && is_fixed(gradient) &&
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
    all.push_back({leaf,
                   gradient.is_sparse() ? gradient.detach().clone() : at::zeros_like(gradient),
                   is_zero});
  }
  return all;
}

bool Recorder::is_old_gradient(const at::Tensor& tensor) {
  const TracedMemory* memory = values_.memory_of(tensor);
  return memory != nullptr && memory->origin == Origin::old_gradient;
}

void Recorder::note_content(const at::Tensor& tensor) {
  for_each_part(tensor, [&](const at::Tensor& part) {
    TracedMemory* memory = values_.memory_of(part);
    const std::span<const std::byte> bytes = bytes_of(part);
    if (memory == nullptr || bytes.empty()) return;
    memory->content.note(bytes, range_of(part), Coverage::sample);
    if (!memory->version.enabled()) memory->version = part.unsafeGetTensorImpl()->version_counter();
    if (memory->version.enabled()) memory->version_seen = memory->version.current_version();
  });
}

void Recorder::note_made(const at::Tensor& result, const std::string& op, bool is_fixed) {
  for_each_part(result, [&](const at::Tensor& part) {
    if (values_.memory_of(part) == nullptr) values_.add_copy(part, Origin::result);
    TracedMemory* memory = values_.memory_of(part);
    if (memory == nullptr || !memory->maker.empty() || memory->origin != Origin::result) return;
    memory->maker = op;
    memory->is_fixed = is_fixed;
    note_content(part);
  });
}

void Recorder::note_size_of_data(const at::Tensor& sparse) {
  for_each_part(sparse, [&](const at::Tensor& part) {
    if (TracedMemory* memory = values_.memory_of(part)) memory->has_size_of_data = true;
  });
}

void Recorder::note_written(const at::Tensor& tensor, bool is_fixed, bool is_overwritten) {
  for_each_part(tensor, [&](const at::Tensor& part) {
    TracedMemory* memory = values_.memory_of(part);
    if (memory == nullptr) return;
    const bool is_all_lost = is_overwritten && covers_its_memory(part);
    memory->is_fixed = is_fixed && (is_all_lost || memory->is_fixed);
    memory->is_written = true;
    note_content(part);
  });
}

void Recorder::expect_content(const at::Tensor& part, const TracedMemory& memory) const {
  const std::span<const std::byte> bytes = bytes_of(part);
  if (bytes.empty() || !memory.content.is_noted()) return;
  // Its owner may set a hyperparameter at any time.
  if (memory.origin == Origin::captured_input) return;
  const bool is_same = memory.content.matches(bytes, range_of(part));
  // The version is not reliable after writes of ops, as custom functions count theirs once more
  // (mark_dirty), and not for variables, as effects count too.
  const bool has_sure_version =
      memory.version.enabled() && !memory.is_written && memory.origin != Origin::variable;
  if (is_same && (!has_sure_version || memory.version.current_version() == memory.version_seen))
    return;
  refuse_lost_write(part, memory.maker.empty() ? std::string(name_of(memory.origin))
                                               : "which " + memory.maker + " made");
}

Recorder::Watched& Recorder::watch(const at::Tensor& variable) {
  const auto [known, is_new] =
      watched_at_.try_emplace(variable.unsafeGetTensorImpl(), watched_.size());
  if (!is_new) return watched_[known->second];
  state_.keep_memory(variable);
  Watched& watched = watched_.emplace_back(Watched{variable, Geometry::of(variable), {}});
  const std::span<const std::byte> bytes = bytes_of(variable);
  if (!bytes.empty()) watched.content.note(bytes, all_of(bytes), Coverage::all);
  return watched;
}

void Recorder::release_graphs() {
  const std::vector<at::Tensor> living = values_.living();
  for (const at::Tensor& tensor : living) {
    const TracedMemory* memory = values_.memory_of(tensor);
    // A gradient that was written with its leaf holds the leaf. The gradients of variables are
    // restored.
    if (memory != nullptr && memory->origin == Origin::result && tensor.is_leaf())
      tensor.mutable_grad().reset();
  }
  function::release_graphs(living);
}

void Recorder::expect_own_memory(const Watched& watched) const {
  if (watched.geometry == Geometry::of(watched.tensor)) return;
  const TracedVariable* variable = variable_at(watched.geometry.storage);
  refuse("variable '", variable != nullptr ? variable->name : "",
         "' got other memory or another shape inside the function (set_data(), unsqueeze_()); "
         "copy_() or assign the new values, and reshape what it is read as");
}

void Recorder::expect_untouched(const Watched& watched) const {
  expect_own_memory(watched);
  const std::span<const std::byte> bytes = bytes_of(watched.tensor);
  if (bytes.empty() || watched.content.matches(bytes, all_of(bytes))) return;
  refuse_lost_write(watched.tensor, std::string(name_of(Origin::variable)));
}

// The content of a variable that an op has used is checked at each use.
void Recorder::expect_variables_kept() const {
  for (const Watched& watched : watched_) {
    if (watched.is_met) {
      expect_own_memory(watched);
    } else {
      expect_untouched(watched);
    }
  }
}

// In eager execution a buffer keeps the graph of earlier calls, and gradients flow through them.
void Recorder::expect_buffers_without_graph() const {
  for (const VariableUse& use : variables_) {
    if (!use.tensor.requires_grad() || use.tensor.is_leaf()) continue;
    refuse(
        "variable '", use.traced->name,
        "' was written in place with a value that requires a gradient: the next call's gradients "
        "would flow through this call too, and a server keeps no graph from call to call. Write "
        "value.detach(), write under at::NoGradGuard, or use assign()");
  }
}

bool Recorder::is_fixed(const at::Tensor& tensor) {
  bool is_fixed = true;
  for_each_part(tensor, [&](const at::Tensor& part) {
    const TracedMemory* memory = values_.memory_of(part);
    // Memory that the trace does not know becomes a constant, unless it is a variable.
    const bool is_part_fixed = memory == nullptr
                                   ? variable_at(part) == nullptr
                                   : memory->is_fixed || memory->origin == Origin::constant;
    is_fixed = is_fixed && is_part_fixed;
  });
  return is_fixed;
}

bool Recorder::is_argument_fixed(const c10::IValue& argument) {
  bool are_fixed = true;
  for_each_tensor(argument,
                  [&](const at::Tensor& tensor) { are_fixed = are_fixed && is_fixed(tensor); });
  return are_fixed;
}

bool Recorder::has_fixed_shape(const c10::OperatorHandle& op, Arguments arguments) {
  const std::string& name = op.operator_name().name;
  // The mask alone decides the shape.
  const std::size_t first = name == "aten::index" || name == "aten::masked_select" ? 1 : 0;
  return std::all_of(arguments.begin() + static_cast<std::ptrdiff_t>(first), arguments.end(),
                     [this](const c10::IValue& argument) { return is_argument_fixed(argument); });
}

std::vector<bool> Recorder::fixed_results(const c10::OperatorHandle& op, Arguments arguments) {
  bool is_fixed = !is_random(op);
  const bool reads_no_data = makes_memory_to_fill(op.operator_name().name);
  for (std::size_t i = 0; is_fixed && !reads_no_data && i < arguments.size(); ++i) {
    const bool is_lost = writes_argument(op, arguments, i) && overwrites_argument(op, i);
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!is_lost || !tensor.has_storage() || !covers_its_memory(tensor))
        is_fixed = is_fixed && this->is_fixed(tensor);
    });
  }
  std::vector<bool> results(op.schema().returns().size(), is_fixed);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int source = source_of_result(op, i);
    if (source >= 0) results[i] = is_argument_fixed(arguments[static_cast<std::size_t>(source)]);
  }
  return results;
}

void Recorder::expect_fixed_host_reads(const c10::OperatorHandle& op, Arguments arguments) {
  const auto& schema = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!reads_on_host(op, arguments, i) || is_argument_fixed(arguments[i])) continue;
    refuse("it reads the data of its argument '", schema[i].name(),
           "' on the host, where it would be frozen, and that depends on arguments, elements, "
           "variables or random numbers; give it numbers that are the same in every call "
           "(torch::full or torch::tensor inside the function), or do this outside");
  }
  if (!takes_sparse_apart(op)) return;
  for_each_tensor(arguments[0], [&](const at::Tensor& tensor) {
    bool is_of_data = false;
    for_each_part(tensor, [&](const at::Tensor& part) {
      const TracedMemory* memory = values_.memory_of(part);
      is_of_data = is_of_data || (memory != nullptr && memory->has_size_of_data);
    });
    if (is_of_data) {
      refuse(
          "the number of values of a coalesced sparse tensor depends on its indices, and a "
          "program has fixed shapes; use it before coalesce(), or to_dense()");
    }
  });
}

void Recorder::watch_memory(const at::Tensor& tensor, int id, bool is_unwritten) {
  TracedMemory* memory = values_.memory_of(tensor);
  const std::span<const std::byte> known = bytes_of(tensor);
  if (memory == nullptr || known.empty()) return;
  if (is_unwritten) {
    // The pattern differs from byte to byte, so that no usual content equals it.
    const std::span bytes(const_cast<std::byte*>(known.data()), known.size());
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(0xa7 ^ (i * 0x3b));
  }
  memory->factory_value = id;
  // A single element that is written by hand must be noticed here: it is part of a constant.
  memory->content.note(known, all_of(known), Coverage::all);
}

void Recorder::note_content_use(const at::Tensor& tensor, bool is_written, bool is_overwritten) {
  for_each_part(tensor, [&](const at::Tensor& part) {
    TracedMemory* memory = values_.memory_of(part);
    if (memory == nullptr) return;
    const int factory = memory->factory_value;
    if (is_written) memory->factory_value = -1;
    const bool is_all_lost = is_overwritten && covers_its_memory(part);
    if (memory->origin == Origin::old_gradient) {
      if (!is_all_lost) refuse_old_gradient(memory->maker);
      memory->origin = Origin::result;
    }
    if (is_all_lost) return;
    if (factory < 0) return expect_content(part, *memory);
    // torch::tensor({1, 2}) and writes through data_ptr() fill the memory of a factory op without
    // an op: the content becomes a constant that is copied there before `tensor` is used.
    const std::span<const std::byte> bytes = bytes_of(part);
    if (bytes.empty() || memory->content.matches(bytes, all_of(bytes))) return;
    memory->content.note(bytes, all_of(bytes), Coverage::all);
    add_host_content(part, factory);
  });
}

void Recorder::add_host_content(const at::Tensor& tensor, int base) {
  Untraced untraced;
  const Geometry geometry = values_.geometry(base);
  at::Tensor flat = whole_memory(tensor).view(geometry.dtype);
  at::Tensor content = at::as_strided(flat, geometry.sizes, geometry.strides, geometry.offset)
                           .clone(at::MemoryFormat::Contiguous);
  expect_small(content);
  int constant = values_.add(content, Origin::constant);
  program_.constants.push_back({constant, content, false});
  add_op("aten::copy_", "",
         {value_argument(base), value_argument(constant), boolean_argument(false)}, base);
  program_.ops.back().flags = Op::writes;
}

}  // namespace cohort::function
