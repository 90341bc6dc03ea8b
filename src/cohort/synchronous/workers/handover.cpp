// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/handover.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/fields.h"
#include "cohort/core/log.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/collected_shares.h"
#include "cohort/synchronous/workers/received_state.h"
#include "cohort/synchronous/workers/sharded_updates.h"

namespace cohort::internal {
namespace {

// The content that is handed over: on the source its own tensors, on the others those into which
// they receive.
struct Content {
  std::uint64_t replicas = 1;  // of each worker
  HomeState state = {};
  std::uint64_t seed = 0;     // of LibTorch's default generator
  at::Tensor generator = {};  // its state
};

// The source tells the others of which tensors it will send the values.
struct SlotShapes {
  std::string optimizer = {};
  std::string rule = {};
  std::vector<TensorSpec> tensors = {};
};
struct VariableShape {
  std::string name = {};
  TensorSpec spec = {};
  std::vector<std::vector<SlotShapes>> values = {};
};
struct AttachedShape {
  std::string key = {};
  std::uint64_t bytes = 0;
};
struct ContentShape {
  std::uint64_t replicas = 1;
  std::uint64_t seed = 0;
  std::uint64_t generator_bytes = 0;
  std::vector<VariableShape> variables = {};
  std::vector<AttachedShape> attached = {};
};
template <class Codec>
void fields(Codec& codec, SlotShapes& slots) {
  codec(slots.optimizer, slots.rule, slots.tensors);
  if constexpr (Codec::kReads) {
    for (const TensorSpec& tensor : slots.tensors)
      if (!tensor.is_static()) codec.fail("known sizes of slots");
  }
}
template <class Codec>
void fields(Codec& codec, VariableShape& variable) {
  codec(variable.name, variable.spec, variable.values);
  if constexpr (Codec::kReads) {
    if (!variable.spec.is_static()) codec.fail("known sizes of a variable");
  }
}
template <class Codec>
void fields(Codec& codec, AttachedShape& attached) {
  codec(attached.key, attached.bytes);
}
template <class Codec>
void fields(Codec& codec, ContentShape& content) {
  codec(content.replicas, Fixed{content.seed}, content.generator_bytes, content.variables,
        content.attached);
}

Content content_of(MirroredHome& home) {
  Content content{.replicas = home.replicas(), .state = home.received().kept()};
  home.export_state(home.variables(), {.is_by_replica = true},
                    [&](std::size_t, VariableRecord record) {
                      content.state.variables.insert_or_assign(record.name, std::move(record));
                    });
  for (const auto& attached : home.attached().all())
    content.state.attached.insert_or_assign(attached->key(), attached->save());
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  content.seed = generator.current_seed();
  content.generator = generator.get_state().clone();
  return content;
}

ContentShape shape_of(const Content& content) {
  ContentShape shape{.replicas = content.replicas,
                     .seed = content.seed,
                     .generator_bytes = content.generator.nbytes()};
  for (const auto& [name, record] : content.state.variables) {
    VariableShape& variable = shape.variables.emplace_back(VariableShape{name, record.spec, {}});
    for (const VariableRecord::Value& value : record.values) {
      std::vector<SlotShapes>& of_value = variable.values.emplace_back();
      for (const OptimizerSlots& slots : value.slots) {
        of_value.push_back({slots.optimizer, slots.rule, {}});
        for (const at::Tensor& tensor : slots.tensors)
          of_value.back().tensors.push_back(TensorSpec::of(tensor));
      }
    }
  }
  for (const auto& [key, bytes] : content.state.attached)
    shape.attached.push_back({key, bytes.size()});
  return shape;
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

VariableRecord record_for(const VariableShape& shape, MirroredVariable* own) {
  VariableRecord record{.name = shape.name, .spec = shape.spec};
  if (own != nullptr && own->spec() != shape.spec) own = nullptr;  // an error later on
  for (std::size_t v = 0; v < shape.values.size(); ++v) {
    const bool is_own = own != nullptr && v < own->size();
    const VariableState* const state = is_own ? &own->state(v) : nullptr;
    VariableRecord::Value value{is_own ? own->component(v).detach() : empty_handed(shape.spec)};
    for (const SlotShapes& given : shape.values[v]) {
      OptimizerSlots& slots = value.slots.emplace_back(OptimizerSlots{given.optimizer, given.rule});
      for (std::size_t i = 0; i < given.tensors.size(); ++i)
        slots.tensors.push_back(slot_for(state, slots.optimizer, slots.rule, i, given.tensors[i]));
    }
    record.values.push_back(std::move(value));
  }
  return record;
}

using OwnVariables = std::map<std::string, Variable>;

OwnVariables own_variables(MirroredHome& home) {
  OwnVariables all;
  for (const Variable& variable : home.variables()) all.emplace(variable.name(), variable);
  return all;
}

Content content_for(const ContentShape& shape, const OwnVariables& own) {
  Content content{.replicas = shape.replicas, .seed = shape.seed};
  content.generator =
      at::empty({static_cast<std::int64_t>(shape.generator_bytes)}, at::TensorOptions(at::kByte));
  for (const VariableShape& variable : shape.variables) {
    const auto known = own.find(variable.name);
    content.state.variables.emplace(
        variable.name,
        record_for(variable, known == own.end() ? nullptr : &target_of(known->second).variable));
  }
  for (const AttachedShape& attached : shape.attached)
    content.state.attached.emplace(attached.key, Bytes(attached.bytes));
  return content;
}

// All tensors, in an order that is the same in all workers. Other states are bytes, to which the
// tensors point.
std::vector<at::Tensor> tensors_of(Content& content) {
  std::vector<at::Tensor> all{content.generator};
  for (const auto& [name, variable] : content.state.variables) {
    for (const VariableRecord::Value& value : variable.values) {
      all.push_back(value.tensor);
      for (const OptimizerSlots& slots : value.slots)
        all.insert(all.end(), slots.tensors.begin(), slots.tensors.end());
    }
  }
  for (auto& [key, bytes] : content.state.attached)
    all.push_back(at::from_blob(bytes.data(), static_cast<std::int64_t>(bytes.size()),
                                at::TensorOptions(at::kByte)));
  return all;
}

void broadcast_content(collective::Group& group, Content& content, int source, Deadline deadline) {
  const std::vector<at::Tensor> tensors = tensors_of(content);
  std::vector<at::Tensor> sent;
  // Tensors of a GPU, or of an inference mode, go through a copy.
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

// Throws if this worker has content that the source has not.
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
    COHORT_CHECK(content.state.attached.contains(attached->key()), ErrorCode::failed_precondition,
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
  const bool awaits_first_run =
      (begins || home.received().awaits_first_run()) && !content.state.is_empty();
  for (const auto& [name, variable] : own) {
    const auto found = content.state.variables.find(name);
    target_of(variable).variable.take(found->second, /*may_keep=*/true);
    content.state.variables.erase(found);
  }
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
    return encode_fields(shape_of(content));
  };
  const std::vector<Bytes> all =
      collective::exchange_result(group, make, "what is handed over", deadline);
  const OwnVariables own = own_variables(home);
  const auto check = [&] {
    if (!is_source) {
      const Bytes& sent = all.at(static_cast<std::size_t>(source));
      content = content_for(decode_fields<ContentShape>(sent, "the state of another worker"), own);
    }
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
