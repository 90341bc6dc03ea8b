// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/pass.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cohort/core/error_bytes.h"
#include "cohort/core/log.h"
#include "cohort/input/dummy.h"
#include "cohort/input/internal/start_note.h"

namespace cohort::input {

Pass::Pass(std::shared_ptr<Plan> plan)
    : plan_(std::move(plan)), handles_partial_batches_(plan_->handles_partial_batches()) {
  plan_->host().check_context("iterator");
  state_.dealing = plan_->dealing();
  state_.num_replicas = plan_->host().num_replicas_in_sync();
  state_.run.seed = plan_->seed();
  state_.run.iteration = plan_->next_pass();
  agree_on_start();
  state_.handles_partial_batches = handles_partial_batches_;
  std::vector<FeedPosition> from_start;
  for (std::size_t i = 0; i < plan_->num_feeds(); ++i) {
    const PipelineId id = plan_->own_pipeline(state_.dealing, i);
    from_start.push_back({.streams = {{.num = id.num, .index = id.index}}});
  }
  std::exception_ptr error;
  try {
    state_.feeds = open(state_, std::move(from_start));
  } catch (...) {
    error = std::current_exception();
  }
  check_all(error);
  log_info("[input] pass ", *state_.run.iteration, ": ", plan_->describe(state_.dealing));
}

Deadline Pass::deadline() const { return Deadline::after(plan_->host().timeout); }

void Pass::agree_on_start() {
  const InputHost& host = plan_->host();
  if (!host.group) return;
  agreement_ = host.group->start("a distributed iterator");
  const auto make = [this] {
    StartNote mine = StartNote::of(*plan_);
    mine.seed = state_.run.seed;
    mine.pass = *state_.run.iteration;
    return mine.encode();
  };
  std::vector<StartNote> notes;
  for (const Bytes& bytes :
       agreement_->exchange_made(make, "the start of an iterator", deadline())) {
    notes.push_back(StartNote::decode(bytes));
  }
  check_alike(notes);
  follow(notes);
}

void Pass::follow(const std::vector<StartNote>& notes) {
  state_.run.seed = notes.front().seed;
  state_.run.iteration = notes.front().pass;
  std::optional<std::int64_t> steps = 0;
  bool never_fails = true;
  bool are_all_infinite = true;
  for (const StartNote& note : notes) {
    never_fails = never_fails && note.never_fails;
    are_all_infinite = are_all_infinite && note.is_infinite;
    steps = steps && note.steps ? std::optional(std::max(*steps, *note.steps)) : std::nullopt;
  }
  if (notes.size() > 1) {
    handles_partial_batches_ = plan_->host().handles_partial_batches && !are_all_infinite;
  }
  // No message is needed for what every worker knows beforehand.
  state_.votes = !never_fails || (!steps && !are_all_infinite);
  if (!state_.votes) state_.steps_left = steps;
}

std::vector<std::unique_ptr<MultiDeviceIterator>> Pass::open(
    const State& state, std::vector<FeedPosition> positions) const {
  const InputHost& host = plan_->host();
  std::vector<std::unique_ptr<MultiDeviceIterator>> feeds;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const OpenStream start = [plan = plan_, dealing = state.dealing, run = state.run,
                              replicas = state.num_replicas](std::int64_t num, std::int64_t index) {
      return plan->open(dealing, {num, index, replicas}, run);
    };
    auto feed = std::make_unique<Feed>(
        Streams(plan_->spec().component, start),
        state.is_own ? plan_->own_cutter(state.dealing) : plan_->cutter_of_others(state.dealing));
    std::vector<Fields> undelivered = std::move(positions[i].undelivered);
    feed->set(std::move(positions[i]));
    std::vector<Device> devices = host.devices;
    if (positions.size() > 1) devices = {host.devices.at(i)};
    feeds.push_back(std::make_unique<MultiDeviceIterator>(
        std::move(feed), std::move(devices),
        MultiDeviceOptions{.buffer_size = plan_->options().buffer_size(),
                           .fetch_to_device = plan_->options().fetch_to_device.value_or(true),
                           .error_turn = plan_->error_turn(state.dealing, state.is_own),
                           .memory = host.memory}));
    feeds.back()->requeue(std::move(undelivered));
  }
  return feeds;
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
  if (error) mine.error = error_in(error);
  return agreement_->vote(mine, deadline());
}

MultiDeviceIterator& Pass::feed_of(std::size_t replica) {
  return *state_.feeds[state_.feeds.size() == 1 ? 0 : replica];
}

std::size_t Pass::turn_of(std::size_t replica) const {
  return state_.feeds.size() == 1 ? replica : 0;
}

namespace {

std::int64_t count_examples(const Fields& fields) {
  return fields.empty() || fields.front().dim() == 0 ? 1 : fields.front().size(0);
}

}  // namespace

// First checks every feed, since an error there loses elements; then copies, which loses none.
Pass::Step Pass::draw() {
  const std::size_t replicas = plan_->host().devices.size();
  Step step{.has_data = std::vector<bool>(replicas)};
  bool is_drawn = false;
  try {
    for (std::size_t i = 0; i < replicas; ++i) step.has_data[i] = feed_of(i).has(turn_of(i));
    is_drawn = true;
    for (std::size_t i = 0; i < replicas; ++i) add_component(i, step);
  } catch (...) {
    step.error = std::current_exception();
    step.vote.costs_batch = !is_drawn && state_.is_own && plan_->errors_cost_batch();
  }
  return step;
}

void Pass::add_component(std::size_t replica, Step& step) {
  if (!step.has_data[replica]) {
    step.components.push_back(dummy(replica));
    step.examples.push_back(-1);
    return;
  }
  const Fields& fields = *feed_of(replica).front(turn_of(replica));
  step.components.push_back(plan_->spec().component.pack(fields));
  step.examples.push_back(count_examples(fields));
  step.vote.components += 1;
  step.vote.examples += step.examples.back();
}

void Pass::pop_all(const Step& step) {
  for (std::size_t i = 0; i < step.has_data.size(); ++i) {
    if (step.has_data[i]) feed_of(i).pop(turn_of(i));
  }
}

std::optional<DistributedElement> Pass::next(bool hands_out_all) {
  plan_->host().check_context("get_next");
  if (state_.is_over) return std::nullopt;
  if (state_.steps_left && *state_.steps_left == 0) return end();
  Step step = draw();
  if (step.error && !state_.votes) std::rethrow_exception(step.error);
  const bool is_short = step.vote.components < static_cast<std::int64_t>(step.has_data.size());
  std::int64_t components = step.vote.components;
  std::optional<std::int64_t> examples;
  if (state_.votes) {
    const StepVerdict verdict = agree(step.vote, step.error);
    if (verdict.error) {
      // Drops this worker's part; the worker with the error has already lost its own.
      if (verdict.costs_batch && !step.vote.costs_batch) pop_all(step);
      throw Error(*verdict.error);
    }
    components = verdict.components;
    examples = verdict.examples;
  } else if (!agreement_) {
    examples = step.vote.examples;
  } else if (state_.steps_left) {
    components = 1;  // some worker has data
  }
  if (components == 0) return end();
  if (is_short && !state_.handles_partial_batches && !hands_out_all) return end();
  return take(std::move(step), examples);
}

std::nullopt_t Pass::end() {
  state_.is_over = true;
  return std::nullopt;
}

DistributedElement Pass::take(Step step, std::optional<std::int64_t> global_num_examples) {
  pop_all(step);
  if (state_.steps_left) *state_.steps_left -= 1;
  state_.steps += 1;
  DistributedElement::Counts counts{.examples = std::move(step.examples),
                                    .global_num_examples = global_num_examples};
  if (!plan_->spec().is_wrapped) {
    return {PerReplica<Nest>::bare(std::move(step.components.front())), std::move(counts)};
  }
  return {PerReplica<Nest>(std::move(step.components)), std::move(counts)};
}

// A new one each time, since a replica could write to a scalar.
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
