// SPDX-License-Identifier: Apache-2.0
// The part of the recorder that decides what a tensor is: a value of the program, a variable, or a
// constant.
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>

#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/ops.h"
#include "cohort/function/tracer/recorder.h"
#include "cohort/function/variable_read.h"

namespace cohort::function {
namespace {

std::int64_t byte_count(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

// The number of elements that fit into the memory from the tensor's first element to its last one.
std::int64_t span_of(const at::Tensor& tensor) {
  const ByteRange range = range_of(tensor);
  return static_cast<std::int64_t>((range.end - range.begin) / tensor.element_size());
}

// Returns a key that consists of the values, the dtype and the wrapped-number flag of a small
// contiguous tensor.
std::string key_of(const at::Tensor& number, bool is_wrapped) {
  std::string key(static_cast<const char*>(number.data_ptr()), number.nbytes());
  key += static_cast<char>(number.scalar_type());
  key += is_wrapped ? 'w' : 't';
  return key;
}

}  // namespace

int Recorder::value_of(const at::Tensor& tensor) {
  renew(tensor);
  int id = values_.find(tensor);
  if (id < 0) {
    const TracedMemory* memory = values_.memory_of(tensor);
    if (memory == nullptr || memory->origin == Origin::constant) {
      id = capture(tensor);
    } else if (int base = values_.find_base(tensor); base >= 0) {
      id = view_of(tensor, base);
    } else {
      refuse("it reads the memory of a traced tensor as ", TensorSpec::of(tensor).to_string(),
             ", through code that the trace did not see");
    }
  }
  note_read(tensor);
  return id;
}

// data() makes a tensor with the memory and the shape of another one, and runs no operator, so both
// are one value. An operator that reshaped that value would reshape the other tensor too: a
// variable would keep the new shape, and its server would get its values in another order.
void Recorder::separate_reshaped(const c10::OperatorHandle& op, Arguments arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!may_reshape_argument(op, i)) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.layout() != c10::kStrided) return;
      const int id = value_of(tensor);
      if (!values_.is_shared(tensor, id)) return;
      add_op("aten::detach", "", {value_argument(id)}, values_.add(tensor, Origin::result));
    });
  }
}

int Recorder::view_of(const at::Tensor& tensor, int base) {
  auto strided = [&](int of, c10::IValue offset) {
    Arg last;
    if (!offset.isNone()) last = integer_argument(offset.toInt());
    return add_op("aten::as_strided", "",
                  {value_argument(of), integers_argument(tensor.sizes().vec()),
                   integers_argument(tensor.strides().vec()), last},
                  values_.add(tensor, Origin::result));
  };
  if (values_.memory_of(tensor)->origin == Origin::result) {
    if (tensor.storage().nbytes() > values_.memory_of(tensor)->bytes) {
      refuse("its tensor ", TensorSpec::of(tensor).to_string(),
             " got its memory inside an operator that resizes what it writes to (out=): call the "
             "form that returns its result, or give it memory of the result's size");
    }
    return strided(base, tensor.storage_offset());
  }
  // On a server, inputs and variables may have other offsets in their memory, so offsets count from
  // their first element.
  const Geometry whole = values_.geometry(base);
  std::int64_t count = 1;
  for (std::int64_t size : whole.sizes) count *= size;
  std::int64_t begin = tensor.storage_offset() - whole.offset;
  if (begin < 0 || begin + span_of(tensor) > count) {
    refuse("it reads memory outside of ", TensorSpec{whole.dtype, whole.sizes}.to_string(), ", as ",
           TensorSpec::of(tensor).to_string(), " with strides: a server has something else there");
  }
  if (begin == 0) return strided(base, {});
  int flat = add_op("aten::view", "", {value_argument(base), integers_argument({count})},
                    values_.add_unseen());
  int part = add_op("aten::slice", "Tensor",
                    {value_argument(flat), integer_argument(0), integer_argument(begin),
                     integer_argument(count), integer_argument(1)},
                    values_.add_unseen());
  return strided(part, {});
}

int Recorder::add_op(std::string name, std::string overload, std::vector<Arg> args, int result) {
  program_.ops.push_back({.name = std::move(name),
                          .overload = std::move(overload),
                          .args = std::move(args),
                          .outs = {{.is_list = false, .ids = {result}}}});
  return result;
}

int Recorder::capture(const at::Tensor& tensor) {
  if (const TracedVariable* traced = variable_at(tensor)) {
    add_variable(*traced, tensor);
    return value_of(tensor);
  }
  expect_freezable(tensor);
  Untraced untraced;
  if (!memory_->is_young(tensor.data_ptr())) frozen_.emplace_back(tensor);
  return add_frozen(tensor);
}

// A lazily conjugated or negated tensor stays lazy, because ops depend on that.
int Recorder::add_frozen(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) {
    const bool is_conj = tensor.is_conj();
    const int plain = add_frozen(is_conj ? at::_conj(tensor) : at::_neg_view(tensor));
    return add_op(is_conj ? "aten::_conj" : "aten::_neg_view", "", {value_argument(plain)},
                  values_.add(tensor, Origin::constant));
  }
  return tensor.dim() == 0 ? add_number(tensor) : add_constant(tensor);
}

bool Recorder::is_read_before(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || tensor.is_leaf()) return false;
  const TracedMemory* memory = values_.memory_of(tensor);
  if (memory != nullptr && memory->origin != Origin::constant) return false;
  return variable_at(tensor) == nullptr && is_computed_from_reads(tensor);
}

void Recorder::cut_graphs_of_reads(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  for (auto value = stack.end() - static_cast<std::ptrdiff_t>(count); value != stack.end();
       ++value) {
    bool is_cut = false;
    for_each_tensor(*value,
                    [&](const at::Tensor& tensor) { is_cut = is_cut || is_read_before(tensor); });
    if (!is_cut) continue;
    Untraced untraced;
    const auto values_alone = [this](const at::Tensor& tensor) {
      return is_read_before(tensor) ? tensor.detach() : tensor;
    };
    if (value->isTensor()) {
      *value = values_alone(value->toTensor());
    } else if (value->isTensorList()) {
      std::vector<at::Tensor> tensors = value->toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = values_alone(tensor);
      *value = std::move(tensors);
    }
  }
}

void Recorder::expect_freezable(const at::Tensor& tensor) const {
  std::string spec = TensorSpec::of(tensor).to_string();
  if (tensor.layout() != c10::kStrided) {
    refuse("it reads a tensor of layout ", tensor.layout(), " made outside the function (", spec,
           "); only strided ones can be constants");
  }
  if (!tensor.device().is_cpu()) {
    refuse("expected tensors on the CPU, got one on ", tensor.device(), " (", spec,
           ") that was made outside the function; workers run steps on the CPU: call "
           "to(torch::kCPU) on it, and pass the result as an argument or make it a variable");
  }
  if (tensor.dim() > 0 && memory_->is_young(tensor.data_ptr())) {
    refuse("it reads a tensor (", spec,
           ") made during the trace by code that calls no LibTorch operator the trace could see; "
           "its value would be frozen");
  }
  const std::string escaped = origin_of_escaped(tensor.storage().unsafeGetStorageImpl());
  if (!escaped.empty()) {
    refuse("it reads a tensor (", spec, ") that a traced step has left outside of itself (",
           escaped,
           "): it has the values of that trace's example, and no call changes it. Return it from "
           "that step and pass it as an argument, or assign it to a variable");
  }
  if (tensor.requires_grad() && !is_computed_from_reads(tensor)) {
    refuse_local_variable(tensor);
    refuse("it reads a tensor (", spec,
           ") that requires a gradient but is no registered variable: the parameter would be "
           "frozen. Create its module with the strategy's replicate(), or pass it as an argument");
  }
  expect_small(tensor);
}

void Recorder::expect_small(const at::Tensor& tensor) const {
  if (byte_count(tensor) <= options_.constant_bytes_max) return;
  refuse("it reads a tensor (", TensorSpec::of(tensor).to_string(), ", ", byte_count(tensor),
         " bytes) whose values do not come from the function's arguments or variables; such "
         "constants have at most ",
         options_.constant_bytes_max, " bytes: larger ones must be arguments or variables");
}

int Recorder::add_number(const at::Tensor& tensor) {
  bool is_wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  at::Tensor copy = tensor.detach().clone();
  auto [known, is_new] = numbers_.try_emplace(key_of(copy, is_wrapped), -1);
  if (is_new) {
    known->second = values_.add(tensor, Origin::constant);
    program_.constants.push_back({known->second, copy, is_wrapped});
  } else {
    values_.add_copy(tensor, Origin::constant);
  }
  note_content(tensor);
  return known->second;
}

int Recorder::add_constant(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) {
    int id = values_.add(tensor, Origin::constant);
    note_content(tensor);
    program_.constants.push_back({id, tensor.detach().clone(), false});
    return id;
  }
  // The wire format stores values in row-major order, but kernels may sum in the order of the
  // strides. So the program gets the memory as a flat constant and views it with these strides.
  const std::int64_t bytes = span_of(tensor) * static_cast<std::int64_t>(tensor.element_size());
  if (bytes > options_.constant_bytes_max) {
    refuse("it reads a tensor (", TensorSpec::of(tensor).to_string(), ") that lies spread over ",
           bytes,
           " bytes of memory outside the function; read its contiguous() copy, made outside");
  }
  const at::Tensor flat =
      at::as_strided(tensor.detach(), {span_of(tensor)}, {1}, tensor.storage_offset()).clone();
  int flat_id = values_.add(flat, Origin::constant);
  program_.constants.push_back({flat_id, flat, false});
  int id = values_.add(tensor, Origin::constant);
  note_content(tensor);
  return add_op("aten::as_strided", "",
                {value_argument(flat_id), integers_argument(tensor.sizes().vec()),
                 integers_argument(tensor.strides().vec()), integer_argument(0)},
                id);
}

int Recorder::add_variable(const TracedVariable& traced, const at::Tensor& tensor) {
  const at::Tensor& whole = traced.tensor.defined() ? traced.tensor : tensor;
  if (!traced.is_handle_only && !(whole.is_contiguous() && whole.storage_offset() == 0)) {
    refuse("variable '", traced.name,
           "' is not contiguous or is part of another tensor's memory; register "
           "tensor.contiguous().clone()");
  }
  Watched& watched = watch(whole);
  expect_untouched(watched);
  watched.is_met = true;
  COHORT_ASSERT(whole.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl());
  auto index = static_cast<int>(program_.variables.size());
  int id = values_.add(whole, Origin::variable);
  values_.memory_of(whole)->variable = index;
  note_content(whole);
  program_.variables.push_back({.id = id,
                                .name = traced.name,
                                .spec = TensorSpec::of(whole),
                                .is_read = false,
                                .is_handle_only = traced.is_handle_only});
  variables_.push_back({&traced, whole});
  state_.hide_gradient(whole);
  return index;
}

void Recorder::note_read(const at::Tensor& tensor) {
  const TracedMemory* memory = values_.memory_of(tensor);
  if (memory == nullptr || memory->origin != Origin::variable) return;
  const auto index = static_cast<std::size_t>(memory->variable);
  ProgramVariable& variable = program_.variables[index];
  // If an update replaced the first value before an op read it, that value need not be pulled.
  if (!variables_[index].is_pulled_again) variable.is_read = !variable.is_handle_only;
  state_.hide_gradient(tensor);
}

void Recorder::note_write(const at::Tensor& tensor, const c10::OperatorHandle& op,
                          Arguments arguments, std::size_t index) {
  const TracedMemory* memory = values_.memory_of(tensor);
  if (memory == nullptr) return;
  switch (memory->origin) {
    case Origin::argument:
      refuse("it writes into an argument of the function; clone() it first");
    case Origin::captured_input:
      refuse("it writes into a tensor that every call reads anew, as a learning rate");
    case Origin::constant:
      refuse(
          "it writes into a tensor that was made outside the function and is no registered "
          "variable; register parameters and buffers (running_mean, num_batches_tracked), keep "
          "optimizer state in variables");
    case Origin::variable:
      break;
    case Origin::draw:
    case Origin::result:
    case Origin::old_gradient:
      return;
  }
  VariableUse& use = variables_[static_cast<std::size_t>(memory->variable)];
  if (use.traced->is_handle_only || (use.traced->is_remote && use.traced->is_trainable)) {
    refuse("it writes in place into variable '", use.traced->name,
           "', which lives on a server: only a copy would change. Use assign/assign_add or an "
           "optimizer");
  }
  if (use.traced->is_remote)
    note_in_place(use, tensor, buffer_write_of(op, arguments, index, averages_));
  state_.save_contents(tensor);
}

}  // namespace cohort::function
