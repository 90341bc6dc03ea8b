// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/handover.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/collected_shares.h"
#include "cohort/synchronous/workers/received_state.h"
#include "cohort/synchronous/workers/sharded_updates.h"

namespace cohort::internal {
namespace {

// What is handed over: on the source its own tensors, on the others those into which they receive.
struct Content {
  std::uint64_t replicas = 1;  // of each worker
  HandedState state = {};
  std::uint64_t seed = 0;                           // of LibTorch's default generator
  at::Tensor generator = {};                        // its state
  std::map<std::string, at::Tensor> attached = {};  // bytes
};

at::Tensor bytes_tensor(std::size_t size) {
  return at::empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte));
}

at::Tensor tensor_of_bytes(std::span<const std::byte> bytes) {
  const at::Tensor tensor = bytes_tensor(bytes.size());
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Bytes bytes_of_tensor(const at::Tensor& tensor) {
  const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
  return {data, data + tensor.nbytes()};
}

HandedVariable handed_of(MirroredVariable& variable) {
  HandedVariable handed{.spec = variable.spec(), .values = {}};
  // Replicas that must be equal get one value, also if a step that failed has left them different.
  const bool is_one = variable.size() == 1 || variable.must_agree();
  for (std::size_t i = 0; i < (is_one ? 1 : variable.size()); ++i)
    handed.values.push_back({variable.component(i).detach(), variable.state(i).slots()});
  return handed;
}

Content content_of(MirroredHome& home) {
  Content content{.replicas = home.replicas(), .state = home.received().kept()};
  for (const Variable& variable : home.variables()) {
    content.state.variables.insert_or_assign(variable.name(),
                                             handed_of(target_of(variable).variable));
  }
  for (const auto& attached : home.attached().all())
    content.state.attached.insert_or_assign(attached->key(), attached->save());
  for (const auto& [key, bytes] : content.state.attached)
    content.attached.emplace(key, tensor_of_bytes(bytes));
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  content.seed = generator.current_seed();
  content.generator = generator.get_state().clone();
  return content;
}

void write_handed_spec(ByteWriter& out, const TensorSpec& spec) {
  out.u8(static_cast<std::uint8_t>(spec.dtype));
  out.sizes(*spec.sizes);
}

TensorSpec read_handed_spec(ByteReader& in) {
  TensorSpec spec;
  const std::uint8_t dtype = in.u8();
  if (dtype >= static_cast<std::uint8_t>(at::ScalarType::NumOptions)) in.fail("a dtype");
  spec.dtype = static_cast<at::ScalarType>(dtype);
  spec.sizes = in.sizes();
  return spec;
}

Bytes encoded_content(const Content& content) {
  ByteWriter out;
  out.varint(content.replicas);
  out.u64(content.seed);
  out.varint(content.generator.nbytes());
  out.varint(content.state.variables.size());
  for (const auto& [name, variable] : content.state.variables) {
    out.text(name);
    write_handed_spec(out, variable.spec);
    out.varint(variable.values.size());
    for (const HandedVariable::Value& value : variable.values) {
      out.varint(value.slots.size());
      for (const auto& [optimizer, slots] : value.slots) {
        out.text(optimizer);
        out.text(slots.rule);
        out.varint(slots.tensors.size());
        for (const at::Tensor& tensor : slots.tensors)
          write_handed_spec(out, TensorSpec::of(tensor));
      }
    }
  }
  out.varint(content.attached.size());
  for (const auto& [key, bytes] : content.attached) {
    out.text(key);
    out.varint(bytes.nbytes());
  }
  return out.take();
}

at::Tensor empty_handed(const TensorSpec& spec) {
  return at::empty(*spec.sizes, at::TensorOptions(spec.dtype));
}

// The slot itself if this worker has it, else memory for one.
at::Tensor slot_for(const VariableState* own, const std::string& optimizer, const std::string& rule,
                    std::size_t i, const TensorSpec& spec) {
  if (own != nullptr) {
    const auto [first, last] = own->slots().equal_range(optimizer);
    for (auto slots = first; slots != last; ++slots) {
      const std::vector<at::Tensor>& tensors = slots->second.tensors;
      if (slots->second.rule == rule && i < tensors.size() && TensorSpec::of(tensors[i]) == spec)
        return tensors[i];
    }
  }
  return empty_handed(spec);
}

HandedVariable read_variable(ByteReader& in, MirroredVariable* own) {
  HandedVariable variable{.spec = read_handed_spec(in), .values = {}};
  if (own != nullptr && own->spec() != variable.spec) own = nullptr;  // an error later on
  const std::size_t values = in.count();
  for (std::size_t v = 0; v < values; ++v) {
    const bool is_own = own != nullptr && v < own->size();
    const VariableState* const state = is_own ? &own->state(v) : nullptr;
    HandedVariable::Value value{is_own ? own->component(v).detach() : empty_handed(variable.spec),
                                {}};
    const std::size_t optimizers = in.count();
    for (std::size_t o = 0; o < optimizers; ++o) {
      const std::string optimizer = in.text();
      VariableState::RuleSlots slots{in.text(), {}};
      const std::size_t tensors = in.count();
      for (std::size_t i = 0; i < tensors; ++i)
        slots.tensors.push_back(slot_for(state, optimizer, slots.rule, i, read_handed_spec(in)));
      value.slots.emplace(optimizer, std::move(slots));
    }
    variable.values.push_back(std::move(value));
  }
  return variable;
}

using OwnVariables = std::map<std::string, Variable>;

OwnVariables own_variables(MirroredHome& home) {
  OwnVariables all;
  for (const Variable& variable : home.variables()) all.emplace(variable.name(), variable);
  return all;
}

Content decoded_content(const Bytes& bytes, const OwnVariables& own) {
  ByteReader in(bytes, "the state of another worker");
  Content content{.replicas = in.varint()};
  content.seed = in.u64();
  content.generator = bytes_tensor(in.varint());
  const std::size_t variables = in.count();
  for (std::size_t i = 0; i < variables; ++i) {
    const std::string name = in.text();
    const auto found = own.find(name);
    content.state.variables.emplace(
        name, read_variable(in, found == own.end() ? nullptr : &target_of(found->second).variable));
  }
  const std::size_t attached = in.count();
  for (std::size_t i = 0; i < attached; ++i) {
    const std::string key = in.text();
    content.attached.emplace(key, bytes_tensor(in.varint()));
  }
  in.expect_end();
  return content;
}

// All tensors, in an order that is the same in all workers.
std::vector<at::Tensor> tensors_of(const Content& content) {
  std::vector<at::Tensor> all{content.generator};
  for (const auto& [name, variable] : content.state.variables) {
    for (const HandedVariable::Value& value : variable.values) {
      all.push_back(value.tensor);
      for (const auto& [optimizer, slots] : value.slots)
        all.insert(all.end(), slots.tensors.begin(), slots.tensors.end());
    }
  }
  for (const auto& [key, bytes] : content.attached) all.push_back(bytes);
  return all;
}

void broadcast_content(collective::Group& group, const Content& content, int source,
                       Deadline deadline) {
  const std::vector<at::Tensor> tensors = tensors_of(content);
  std::vector<at::Tensor> sent;
  // Those of a GPU, or of an inference mode, go through a copy.
  for (const at::Tensor& tensor : tensors) {
    const bool is_direct = tensor.is_cpu() && !tensor.is_inference();
    sent.push_back(is_direct ? tensor : tensor.cpu().clone());
  }
  group.broadcast(sent, source, deadline);
  if (group.rank() == source) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (sent[i].is_same(tensors[i])) continue;
    const c10::InferenceMode may_write(tensors[i].is_inference());
    const c10::NoGradGuard no_grad;
    tensors[i].copy_(sent[i]);
  }
}

// What this worker has, and the source has not.
void check_content_fits(MirroredHome& home, const Content& content, const OwnVariables& own,
                        const std::string& source) {
  COHORT_CHECK(content.replicas == home.replicas(), ErrorCode::failed_precondition,
               "[strategy.rebuild] expected as many replicas as ", source, " has, ",
               content.replicas, ", got ", home.replicas(),
               "; give all workers the same number of devices");
  for (const auto& [name, variable] : own) {
    const auto found = content.state.variables.find(name);
    COHORT_CHECK(found != content.state.variables.end(), ErrorCode::failed_precondition,
                 "[strategy.rebuild] expected only variables that ", source,
                 " has, whose values all workers get, got '", name,
                 "'; create all variables before the training, in the same order on all workers");
    COHORT_CHECK(found->second.spec == variable.spec(), ErrorCode::failed_precondition,
                 "[strategy.rebuild] expected variable '", name, "' as ", source, " has it, ",
                 found->second.spec.to_string(), ", got ", variable.spec().to_string());
  }
  for (const auto& attached : home.attached().all()) {
    COHORT_CHECK(content.attached.contains(attached->key()), ErrorCode::failed_precondition,
                 "[strategy.rebuild] expected only optimizers that ", source,
                 " has, whose state all workers get, got ", attached->key(),
                 "; make all optimizers before the training, with the same names on all workers");
  }
}

void follow_generator(const Content& content) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  if (generator.current_seed() == content.seed) generator.set_state(content.generator);
}

// After the broadcast: what exists takes the values, the rest is kept.
void take_over(MirroredHome& home, Content content, const OwnVariables& own, bool is_source,
               bool begins, const std::string& source) {
  const bool awaits_first_run = (begins || home.received().awaits_first_run()) &&
                                !(content.state.variables.empty() && content.attached.empty());
  for (const auto& [name, variable] : own) {
    const auto found = content.state.variables.find(name);
    fill(target_of(variable).variable, found->second);
    content.state.variables.erase(found);
  }
  content.state.attached.clear();
  for (const auto& [key, bytes] : content.attached)
    content.state.attached.emplace(key, bytes_of_tensor(bytes));
  for (const auto& attached : home.attached().all()) {
    if (!is_source) attached->load(content.state.attached.at(attached->key()));
    if (!awaits_first_run) content.state.attached.erase(attached->key());
  }
  if (!is_source) follow_generator(content);
  home.received().keep(std::move(content.state), awaits_first_run, source);
}

// The lowest rank that has a whole state.
int find_source(collective::Group& group, bool is_whole, Deadline deadline) {
  const std::vector<Bytes> all =
      group.exchange(Bytes{std::byte{is_whole}}, "who has the values of the last group", deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == Bytes{std::byte{1}}) return static_cast<int>(rank);
  }
  throw_error(ErrorCode::data_loss,
              "[strategy.rebuild] expected a worker that has all values of the last group, got "
              "none, since the only ones that had them are gone; start all workers again, from "
              "saved values");
}

}  // namespace

void hand_over(MirroredHome& home, collective::Group& group, const Arrival& arrival,
               Deadline deadline) {
  if (arrival.is_new) home.set_values_whole(false);
  const bool can_hand_over = collect_shares(home, group, deadline);
  const int source = find_source(group, can_hand_over, deadline);
  const bool is_source = group.rank() == source;
  const std::string name = group.member_name(source);
  Content content;
  const auto make = [&] {
    if (!is_source) return Bytes();
    content = content_of(home);
    return encoded_content(content);
  };
  const std::vector<Bytes> all =
      collective::exchange_result(group, make, "what is handed over", deadline);
  const OwnVariables own = own_variables(home);
  const auto check = [&] {
    if (!is_source) content = decoded_content(all.at(static_cast<std::size_t>(source)), own);
    check_content_fits(home, content, own, name);
    return Bytes();
  };
  collective::exchange_result(group, check, "whether the programs fit", deadline);
  if (!is_source) home.set_values_whole(false);
  broadcast_content(group, content, source, deadline);
  const auto take = [&] {
    take_over(home, std::move(content), own, is_source, arrival.begins, name);
    if (ShardedUpdates* const sharded = home.sharded_updates()) sharded->forget_shares();
    home.set_values_whole(true);
    return Bytes();
  };
  collective::exchange_result(group, take, "whether all have the values", deadline);
  log_info("[strategy] ", is_source ? "handed over" : "received", " the values of ", name);
}

}  // namespace cohort::internal
