// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/distributed_iterator_state.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error_bytes.h"
#include "cohort/core/log.h"
#include "cohort/data/batch_parts.h"
#include "cohort/input/input_host.h"
#include "cohort/input/iterators/iterator_handshake.h"

namespace cohort::input {

DistributedIteratorState::DistributedIteratorState(std::shared_ptr<CurrentDistribution> dataset)
    : dataset_(std::move(dataset)) {
  const std::shared_ptr<const InputHost> host = dataset_->host();
  host->check_current("iterator");
  agree_on_start(host);
  state_.sharding_mode = distribution_->sharding_mode();
  state_.num_pipeline_replicas = host->num_replicas_in_sync();
  state_.handles_partial_batches = handles_partial_batches_;
  std::vector<WorkerPipelinePosition> from_start;
  for (std::size_t i = 0; i < distribution_->num_worker_pipelines(); ++i) {
    const PipelineId id = distribution_->own_pipeline(state_.sharding_mode, i);
    from_start.push_back({.shards = {{.num = id.num, .index = id.index}}});
  }
  do_on_all([&] { state_.pipelines = open(state_, std::move(from_start)); });
  if (state_.order.pass == 0 && distribution_->is_reshuffled_by_seed())
    host->begun_orders->begin(distribution_->fingerprint());
  log_info("[input] pass ", state_.order.pass, ": ", distribution_->describe(state_.sharding_mode));
}

std::vector<Bytes> DistributedIteratorState::exchange(std::string_view call, std::string_view what,
                                                      const std::function<Bytes()>& make) {
  std::string text = std::string(what) + " of iterator " + std::to_string(number_);
  return distribution_->host().exchange_over(*group_, {.call = call, .text = std::move(text)},
                                             make);
}

void DistributedIteratorState::agree_on_start(const std::shared_ptr<const InputHost>& host) {
  const auto own = [&] {
    distribution_ = dataset_->of(host);
    IteratorHandshake mine = IteratorHandshake::of(*distribution_);
    mine.order = dataset_->next();
    mine.num_iterators = *host->num_iterators;
    return mine;
  };
  if (!host->group) {
    const IteratorHandshake mine = own();
    handles_partial_batches_ = distribution_->handles_partial_batches();
    state_.order = mine.order;
    dataset_->note_begun(mine.order);
    return;
  }
  std::optional<collective::WorkerCalls::Running> running;
  if (host->num_workers() > 1) running.emplace(*host->worker_calls, "iterator");
  group_ = host->exchange ? host->group : host->group->split();
  std::vector<IteratorHandshake> handshakes;
  const InputExchange start{
      .call = "input.iterator", .text = "the start of an iterator", .compares_values = true};
  for (const Bytes& bytes : host->exchange_over(*group_, start, [&] { return own().encode(); })) {
    handshakes.push_back(IteratorHandshake::decode(bytes));
  }
  check_alike(handshakes);
  follow(handshakes);
}

void DistributedIteratorState::follow(const std::vector<IteratorHandshake>& handshakes) {
  // The order of a worker that has come back begins again, and that of the others goes on.
  PassOrder order = handshakes.front().order;
  for (const IteratorHandshake& handshake : handshakes) {
    if (handshake.order.pass > order.pass) order = handshake.order;
    number_ = std::max(number_, handshake.num_iterators + 1);
  }
  *distribution_->host().num_iterators = number_;
  dataset_->note_begun(order);
  state_.order = order;
  handles_partial_batches_ = distribution_->handles_partial_batches();
  std::optional<std::int64_t> steps = 0;
  bool cannot_fail = true;
  bool are_all_infinite = true;
  for (const IteratorHandshake& handshake : handshakes) {
    cannot_fail = cannot_fail && handshake.cannot_fail;
    are_all_infinite = are_all_infinite && handshake.is_infinite;
    steps =
        steps && handshake.steps ? std::optional(std::max(*steps, *handshake.steps)) : std::nullopt;
  }
  if (handshakes.size() > 1) {
    handles_partial_batches_ = distribution_->host().handles_partial_batches && !are_all_infinite;
  }
  // No message is needed for what every worker knows beforehand.
  state_.reduces_status = !cannot_fail || (!steps && !are_all_infinite);
  if (!state_.reduces_status) state_.steps_left = steps;
}

std::vector<std::unique_ptr<MultiDeviceIterator>> DistributedIteratorState::open(
    const State& state, std::vector<WorkerPipelinePosition> positions) const {
  const InputHost& host = distribution_->host();
  std::vector<std::unique_ptr<MultiDeviceIterator>> pipelines;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const OpenShard start = [distribution = distribution_, pass = PassState(state)](
                                std::int64_t num, std::int64_t index) {
      return distribution->open(pass.sharding_mode, {num, index, pass.num_pipeline_replicas},
                                {.seed = pass.order.seed, .iteration = pass.order.pass});
    };
    auto pipeline = std::make_unique<WorkerPipeline>(
        ShardReader(distribution_->spec().component, start),
        state.is_own ? distribution_->own_rebatcher(state.sharding_mode)
                     : distribution_->rebatcher_of_others(state.sharding_mode));
    std::vector<Fields> undelivered = std::move(positions[i].undelivered);
    pipeline->set(std::move(positions[i]));
    std::vector<Device> devices = host.devices;
    if (positions.size() > 1) devices = {host.devices.at(i)};
    pipelines.push_back(std::make_unique<MultiDeviceIterator>(
        std::move(pipeline), std::move(devices),
        MultiDeviceOptions{
            .buffer_size = distribution_->options().buffer_size(),
            .fetch_to_device = distribution_->options().fetch_to_device.value_or(true),
            .error_turn = distribution_->error_turn(state.sharding_mode, state.is_own),
            .memory = host.memory}));
    pipelines.back()->requeue(std::move(undelivered));
  }
  return pipelines;
}

void DistributedIteratorState::do_on_all(const std::function<void()>& work) {
  if (!group_) return work();
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const StepStatus status = reduce_status({}, error);
  if (status.error) throw Error(*status.error);
}

StepStatus DistributedIteratorState::reduce_status(StepStatus mine,
                                                   const std::exception_ptr& error) {
  if (error) mine.error = error_in(error);
  return sum_of(exchange("input.get_next", "the next step", [&] { return encode(mine); }), *group_);
}

MultiDeviceIterator& DistributedIteratorState::pipeline_of(std::size_t replica) {
  return *state_.pipelines[state_.pipelines.size() == 1 ? 0 : replica];
}

std::size_t DistributedIteratorState::turn_of(std::size_t replica) const {
  return state_.pipelines.size() == 1 ? replica : 0;
}

// First checks every pipeline, since an error there loses elements; then copies, which loses none.
DistributedIteratorState::Step DistributedIteratorState::draw() {
  const std::size_t replicas = distribution_->host().devices.size();
  Step step{.has_data = std::vector<bool>(replicas)};
  bool is_drawn = false;
  try {
    for (std::size_t i = 0; i < replicas; ++i) step.has_data[i] = pipeline_of(i).has(turn_of(i));
    is_drawn = true;
    for (std::size_t i = 0; i < replicas; ++i) add_component(i, step);
  } catch (...) {
    step.error = std::current_exception();
    step.status.costs_batch = !is_drawn && state_.is_own && distribution_->errors_cost_batch();
  }
  return step;
}

void DistributedIteratorState::add_component(std::size_t replica, Step& step) {
  if (!step.has_data[replica]) {
    step.components.push_back(empty_batch(replica));
    step.examples.push_back(-1);
    return;
  }
  const Fields& fields = *pipeline_of(replica).front(turn_of(replica));
  step.components.push_back(distribution_->spec().component.pack(fields));
  step.examples.push_back(static_cast<std::int64_t>(data::num_rows(fields)));
  step.status.components += 1;
  step.status.examples += step.examples.back();
}

void DistributedIteratorState::pop_all(const Step& step) {
  for (std::size_t i = 0; i < step.has_data.size(); ++i) {
    if (step.has_data[i]) pipeline_of(i).pop(turn_of(i));
  }
}

std::optional<DistributedElement> DistributedIteratorState::next(bool hands_out_all) {
  distribution_->host().check_current("get_next");
  if (state_.is_over) return std::nullopt;
  if (state_.steps_left && *state_.steps_left == 0) return end();
  Step step = draw();
  if (step.error && !state_.reduces_status) std::rethrow_exception(step.error);
  const bool is_short = step.status.components < static_cast<std::int64_t>(step.has_data.size());
  std::int64_t components = step.status.components;
  std::optional<std::int64_t> examples;
  if (state_.reduces_status) {
    const StepStatus all = reduce_status(step.status, step.error);
    if (all.error) {
      // Drops this worker's part; the worker with the error has already lost its own.
      if (all.costs_batch && !step.status.costs_batch) pop_all(step);
      throw Error(*all.error);
    }
    components = all.components;
    examples = all.examples;
  } else if (!group_) {
    examples = step.status.examples;
  } else if (state_.steps_left) {
    components = 1;  // some worker has data
  }
  if (components == 0) return end();
  if (is_short && !state_.handles_partial_batches && !hands_out_all) return end();
  return take(std::move(step), examples);
}

std::nullopt_t DistributedIteratorState::end() {
  state_.is_over = true;
  return std::nullopt;
}

DistributedElement DistributedIteratorState::take(Step step,
                                                  std::optional<std::int64_t> global_num_examples) {
  pop_all(step);
  if (state_.steps_left) *state_.steps_left -= 1;
  state_.steps += 1;
  DistributedElement::Counts counts{.examples = std::move(step.examples),
                                    .global_num_examples = global_num_examples,
                                    .strategy = nullptr};
  const InputHost& host = distribution_->host();
  if (host.num_workers() > 1) host.worker_calls->note_element();
  if (!host.passes_through) counts.strategy = host.num_iterators;
  if (!distribution_->spec().is_wrapped) {
    return {PerReplica<Nest>::bare(std::move(step.components.front())), std::move(counts)};
  }
  return {PerReplica<Nest>(std::move(step.components)), std::move(counts)};
}

// A new one each time, since a replica could write to a scalar.
Nest DistributedIteratorState::empty_batch(std::size_t replica) const {
  const InputHost& host = distribution_->host();
  const Device& device = host.devices[replica];
  const ElementSpec& component = distribution_->spec().component;
  Nest nest = component.pack(data::empty_batch_of(component));
  if (host.memory->is_host(device) || !distribution_->options().fetch_to_device.value_or(true))
    return nest;
  return nest.map_leaves([&](const Nest& leaf) {
    return StringTensor::is(leaf.tensor()) ? leaf : Nest(host.memory->copy(leaf.tensor(), device));
  });
}

}  // namespace cohort::input
