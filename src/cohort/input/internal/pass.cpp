// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/pass.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/input/dummy.h"

namespace cohort::input {

struct Pass::Note {
  std::uint8_t dealing;
  std::int64_t replicas;
  std::string spec;
  bool is_infinite;
  bool never_fails;
  std::optional<std::int64_t> steps;
  std::uint64_t seed;
  std::uint64_t pass;

  Bytes encode() const {
    ByteWriter writer;
    writer.u8(dealing);
    writer.zigzag(replicas);
    writer.text(spec);
    writer.u8(is_infinite ? 1 : 0);
    writer.u8(never_fails ? 1 : 0);
    writer.zigzag(steps.value_or(-1));
    writer.u64(seed);
    writer.varint(pass);
    return writer.take();
  }

  static Note decode(const Bytes& bytes) {
    ByteReader reader(bytes, "start of a distributed iterator");
    Note note{.dealing = reader.u8(), .replicas = reader.zigzag(), .spec = reader.text()};
    note.is_infinite = reader.u8() != 0;
    note.never_fails = reader.u8() != 0;
    if (const std::int64_t steps = reader.zigzag(); steps >= 0) note.steps = steps;
    note.seed = reader.u64();
    note.pass = reader.varint();
    return note;
  }
};

Pass::Pass(std::shared_ptr<Plan> plan)
    : plan_(std::move(plan)),
      dealing_(plan_->dealing()),
      num_replicas_(plan_->host().num_replicas_in_sync()),
      handles_partial_batches_(plan_->handles_partial_batches()) {
  plan_->host().check_context("iterator");
  run_.seed = plan_->seed();
  run_.iteration = plan_->next_pass();
  agree_on_start();
  std::vector<FeedPosition> from_start;
  for (std::size_t i = 0; i < plan_->num_feeds(); ++i) {
    const PipelineId id = plan_->own_pipeline(dealing_, i);
    from_start.push_back({.streams = {{.num = id.num, .index = id.index}}});
  }
  open(std::move(from_start));
  log_info("[input] pass ", *run_.iteration, ": ", plan_->describe(dealing_));
}

Deadline Pass::deadline() const { return Deadline::after(plan_->host().timeout); }

void Pass::agree_on_start() {
  const InputHost& host = plan_->host();
  if (!host.group) return;
  const Note mine{.dealing = static_cast<std::uint8_t>(dealing_),
                  .replicas = host.num_local_replicas(),
                  .spec = plan_->spec().component.to_string(),
                  .is_infinite = plan_->cardinality() == kInfiniteCardinality,
                  .never_fails = plan_->never_fails(),
                  .steps = plan_->num_steps(),
                  .seed = run_.seed,
                  .pass = *run_.iteration};
  agreement_ = host.group->start("a distributed iterator");
  std::vector<Note> notes;
  for (const Bytes& bytes :
       agreement_->exchange(mine.encode(), "the start of an iterator", deadline())) {
    notes.push_back(Note::decode(bytes));
  }
  for (std::size_t i = 0; i < notes.size(); ++i) {
    COHORT_CHECK(notes[i].dealing == mine.dealing && notes[i].replicas == mine.replicas,
                 ErrorCode::invalid_argument,
                 "[input.iterator] expected one way to deal on all workers, with ", mine.replicas,
                 " replicas each, got another on worker:", i,
                 "; build the same dataset and strategy on all");
  }
  follow(notes);
}

void Pass::follow(const std::vector<Note>& notes) {
  run_.seed = notes.front().seed;
  run_.iteration = notes.front().pass;
  std::optional<std::int64_t> steps = 0;
  bool never_fails = true;
  bool are_all_infinite = true;
  for (const Note& note : notes) {
    never_fails = never_fails && note.never_fails;
    are_all_infinite = are_all_infinite && note.is_infinite;
    steps = steps && note.steps ? std::optional(std::max(*steps, *note.steps)) : std::nullopt;
  }
  if (notes.size() > 1) {
    handles_partial_batches_ = plan_->host().handles_partial_batches && !are_all_infinite;
  }
  // What every worker knows beforehand needs no message.
  votes_ = !never_fails || (!steps && !are_all_infinite);
  if (!votes_) steps_left_ = steps;
}

void Pass::open(std::vector<FeedPosition> positions) {
  const InputHost& host = plan_->host();
  feeds_.clear();
  std::exception_ptr error;
  try {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const OpenStream start = [this](std::int64_t num, std::int64_t index) {
        return plan_->open(dealing_, {num, index, num_replicas_}, run_);
      };
      auto feed = std::make_unique<Feed>(
          Streams(plan_->spec().component, start),
          is_own_ ? plan_->own_cutter(dealing_) : plan_->cutter_of_others(dealing_));
      std::vector<Fields> undelivered = std::move(positions[i].undelivered);
      feed->set(std::move(positions[i]));
      std::vector<Device> devices = host.devices;
      if (positions.size() > 1) devices = {host.devices.at(i)};
      feeds_.push_back(std::make_unique<MultiDeviceIterator>(
          std::move(feed), std::move(devices),
          MultiDeviceOptions{.buffer_size = plan_->options().per_replica_buffer_size,
                             .fetch_to_device = plan_->options().fetch_to_device.value_or(true),
                             .error_takes_round = is_own_ && plan_->is_by_index(),
                             .memory = host.memory}));
      feeds_.back()->requeue(std::move(undelivered));
    }
  } catch (...) {
    error = std::current_exception();
  }
  check_all(error);
}

void Pass::check_all(const std::exception_ptr& error) {
  if (!agreement_) {
    if (error) std::rethrow_exception(error);
    return;
  }
  const StepVerdict verdict = agree({}, error);
  if (verdict.error) throw Error(*verdict.error);
}

StepVerdict Pass::agree(StepVote mine, const std::exception_ptr& error) {
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (...) {
      mine.error = current_error();
    }
  }
  StepVerdict verdict = agreement_->vote(mine, deadline());
  return verdict;
}

const Fields* Pass::front(std::size_t replica) {
  return feeds_.size() == 1 ? feeds_.front()->front(replica) : feeds_[replica]->front(0);
}

void Pass::pop(std::size_t replica) {
  feeds_.size() == 1 ? feeds_.front()->pop(replica) : feeds_[replica]->pop(0);
}

void Pass::pop_all(const std::vector<const Fields*>& fronts) {
  for (std::size_t i = 0; i < fronts.size(); ++i) {
    if (fronts[i] != nullptr) pop(i);
  }
}

namespace {

std::int64_t count_examples(const Fields& fields) {
  return fields.empty() || fields.front().dim() == 0 ? 1 : fields.front().size(0);
}

}  // namespace

std::optional<DistributedElement> Pass::next(bool hands_out_all) {
  plan_->host().check_context("get_next");
  if (is_over_) return std::nullopt;
  if (steps_left_ && *steps_left_ == 0) return end();
  const std::size_t replicas = plan_->host().devices.size();
  std::vector<const Fields*> fronts(replicas);
  StepVote mine;
  std::exception_ptr error;
  try {
    for (std::size_t i = 0; i < replicas; ++i) {
      fronts[i] = front(i);
      if (fronts[i] == nullptr) continue;
      mine.components += 1;
      mine.examples += count_examples(*fronts[i]);
    }
  } catch (...) {
    if (!votes_) throw;
    error = std::current_exception();
  }
  const bool is_short = mine.components < static_cast<std::int64_t>(replicas);
  std::int64_t components = mine.components;
  std::optional<std::int64_t> examples;
  if (votes_) {
    const StepVerdict verdict = agree(mine, error);
    if (verdict.error) {
      if (!error && is_own_ && plan_->errors_cost_batch()) pop_all(fronts);
      throw Error(*verdict.error);
    }
    components = verdict.components;
    examples = verdict.examples;
  } else if (!agreement_) {
    examples = mine.examples;
  } else if (steps_left_) {
    components = 1;  // on some worker
  }
  if (components == 0) return end();
  if (is_short && !handles_partial_batches_ && !hands_out_all) return end();
  return take(fronts, examples);
}

std::nullopt_t Pass::end() {
  is_over_ = true;
  return std::nullopt;
}

DistributedElement Pass::take(const std::vector<const Fields*>& fronts,
                              std::optional<std::int64_t> global_num_examples) {
  const ElementSpec& spec = plan_->spec().component;
  std::vector<Nest> components;
  DistributedElement::Counts counts{.examples = {}, .global_num_examples = global_num_examples};
  components.reserve(fronts.size());
  counts.examples.reserve(fronts.size());
  for (std::size_t i = 0; i < fronts.size(); ++i) {
    components.push_back(fronts[i] != nullptr ? spec.pack(*fronts[i]) : dummy(i));
    counts.examples.push_back(fronts[i] != nullptr ? count_examples(*fronts[i]) : -1);
  }
  pop_all(fronts);
  if (steps_left_) *steps_left_ -= 1;
  steps_ += 1;
  if (!plan_->spec().is_wrapped) {
    return {PerReplica<Nest>::bare(std::move(components.front())), std::move(counts)};
  }
  return {PerReplica<Nest>(std::move(components)), std::move(counts)};
}

// Made anew each time: a scalar of it could be written to.
Nest Pass::dummy(std::size_t replica) const {
  const InputHost& host = plan_->host();
  const Device& device = host.devices[replica];
  Nest nest = dummy_element(plan_->spec().component);
  if (host.memory->is_host(device) || !plan_->options().fetch_to_device.value_or(true)) return nest;
  return nest.map_leaves([&](const Nest& leaf) {
    return StringTensor::is(leaf.tensor()) ? leaf : Nest(host.memory->copy(leaf.tensor(), device));
  });
}

}  // namespace cohort::input
