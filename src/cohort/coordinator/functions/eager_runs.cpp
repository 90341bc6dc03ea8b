// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/eager_runs.h"

#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/torch_error.h"
#include "cohort/data/program_questions.h"
#include "cohort/data/program_supply.h"
#include "cohort/data/string_fields.h"
#include "cohort/function/call_signature.h"
#include "cohort/function/registry.h"
#include "cohort/function/step_scope.h"
#include "cohort/function/traced_function.h"
#include "cohort/strategy/replicated.h"

namespace cohort::coordinator {
namespace {

// A copy that the step may write to.
at::Tensor private_copy(const at::Tensor& tensor) {
  if (StringTensor::is(tensor)) return tensor;
  return tensor.detach().clone(at::MemoryFormat::Contiguous).requires_grad_(tensor.requires_grad());
}

// As on a worker, a closure starts without gradients of the variables; the caller's gradients are
// restored afterwards.
class HiddenGradients {
 public:
  explicit HiddenGradients(const std::vector<Variable>& variables) {
    for (const Variable& variable : variables) {
      if (!variable.is_trainable()) continue;
      const at::Tensor& leaf = variable.tensor();
      gradients_.emplace_back(leaf, std::exchange(leaf.mutable_grad(), at::Tensor()));
    }
  }
  ~HiddenGradients() {
    for (auto& [leaf, gradient] : gradients_) leaf.mutable_grad() = std::move(gradient);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
};

Nest call_registered(const Function& fn, const std::vector<Nest>& arguments) {
  const std::string& name = fn.state()->registered_name;
  COHORT_CHECK(function::is_registered_function(name), ErrorCode::failed_precondition,
               "[coordinator.run_eagerly] expected '", name,
               "' to be registered in this process, where steps run eagerly, got no such function; "
               "call register_function() here too, or switch run_eagerly off");
  std::vector<at::Tensor> inputs;
  for (const Nest& argument : arguments) {
    for (const Nest& leaf : argument.flatten()) {
      if (leaf.is_tensor()) inputs.push_back(private_copy(leaf.tensor()));
    }
  }
  std::vector<at::Tensor> outputs = function::call_registered_function(name, std::move(inputs));
  return function::result_of_registered(std::move(outputs));
}

// As a worker makes a per-worker value, of which an error is that of a broken resource.
Nest made_value(Iterator& iterator) {
  try {
    return iterator.get_next();
  } catch (...) {
    throw Error(ErrorCode::failed_precondition, current_error().message())
        .during("making the per-worker value")
        .because(ErrorCause::closure_input);
  }
}

// The result as a worker would return it: dense, without a graph, in memory of its own.
Nest sent(const Nest& result, const std::string& name) {
  std::size_t count = 0;
  return result.map_leaves([&](const Nest& leaf) -> Nest {
    if (!leaf.is_tensor()) return leaf;
    rpc::check_sendable(leaf.tensor(), "coordinator.run_eagerly", "as the result of '" + name + "'",
                        "tensor " + std::to_string(count++), "return it dense, or leave it out");
    return private_copy(leaf.tensor().detach());
  });
}

}  // namespace

// The elements of a worker's pipeline, as copies, since the pipeline may keep them. Can look one
// element ahead. Another thread draws them, while this one traces the dataset's functions for
// elements of further shapes.
class EagerRuns::Elements final : public data::ElementSource {
 public:
  Elements(const IteratorHandle& handle, std::uint32_t worker, std::uint64_t job_seed)
      : datasets_(handle.shared_datasets()),
        worker_(worker),
        supply_(std::make_shared<data::ProgramSupply>(
            [this](const std::string& function, const Fields& element) {
              questions_.ask(function, element);
            })) {
    const rpc::IteratorSpec spec = handle.spec_for(worker, job_seed);
    const std::uint64_t seed = spec.seed_on("worker:" + std::to_string(worker));
    source_ =
        data::load_shipped(spec.dataset, supply_).source({.seed = seed, .iteration = spec.epoch});
    supply_->start();
  }
  ~Elements() override { supply_->end(); }
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;

  const ElementSpec& spec() const override { return source_->spec(); }
  Nest pack(const Fields& fields) const override { return source_->pack(fields); }
  bool next(Fields& fields) override {
    if (ahead_) {
      fields = *std::exchange(ahead_, std::nullopt);
      rows_ += data::num_rows(fields);
      return true;
    }
    if (!read(fields)) return false;
    rows_ += data::num_rows(fields);
    return true;
  }
  // The rows of the elements that next() has returned.
  std::uint64_t rows() const { return rows_; }
  // The element that next() will return; nullptr at the end.
  const Fields* look_ahead() {
    Fields fields;
    if (!ahead_ && read(fields)) ahead_ = std::move(fields);
    return ahead_ ? &*ahead_ : nullptr;
  }
  // next() has not yet returned the element of look_ahead().
  bool is_ahead() const { return ahead_.has_value(); }

 private:
  bool read(Fields& fields) {
    if (!draw(fields)) return false;
    data::check_no_strings(source_->pack(fields), "coordinator.run_eagerly");  // as on a worker
    for (at::Tensor& field : fields) field = private_copy(field);
    return true;
  }
  bool draw(Fields& fields) {
    bool has_element = false;
    std::exception_ptr error;
    questions_.begin_draw();
    const auto run = [&] {
      try {
        has_element = source_->next(fields);
      } catch (...) {
        error = std::current_exception();
      }
      questions_.end_draw();
    };
    std::thread drawing;
    try {
      drawing = start_thread("to draw an element", run);
    } catch (...) {  // the system has no more threads
      questions_.end_draw();
      throw;
    }
    std::exception_ptr unanswered;
    try {
      while (const auto question = questions_.wait()) answer(*question);
    } catch (...) {  // memory is short
      unanswered = std::current_exception();
      supply_->end();  // otherwise the draw would wait for the answer
    }
    drawing.join();
    if (unanswered) std::rethrow_exception(unanswered);
    if (error) std::rethrow_exception(error);
    return has_element;
  }
  void answer(const data::ProgramQuestions::Question& question) {
    const WorkerDatasets::Answer found =
        datasets_->program_for(worker_, question.function, question.element);
    if (!found.error) return supply_->add(question.function, found.program);
    supply_->refuse(question.function, function::specs_of(question.element), *found.error);
  }

  const std::shared_ptr<WorkerDatasets> datasets_;  // shared with their iterators
  const std::uint32_t worker_;
  data::ProgramQuestions questions_;
  const std::shared_ptr<data::ProgramSupply> supply_;  // shared with the pipeline
  std::unique_ptr<data::ElementSource> source_;
  std::optional<Fields> ahead_;
  std::uint64_t rows_ = 0;
};

// Like a worker's iterator, except that no element has been peeked at, which changes no element.
EagerRuns::EagerIterator& EagerRuns::iterator_of(const IteratorHandle& handle,
                                                 std::uint32_t worker) {
  EagerIterator& known = iterators_[{handle.id(), worker}];
  if (known.iterator != nullptr) return known;
  auto elements = std::make_unique<Elements>(handle, worker, context_.connection.options().seed);
  known.elements = elements.get();
  known.iterator = std::make_shared<Iterator>(std::move(elements));
  return known;
}

std::optional<EpochStep> EagerRuns::run_next(const EpochRun& epoch, ClosureId closure,
                                             std::uint32_t worker) {
  const auto& handle = dynamic_cast<const IteratorHandle&>(*epoch.arguments.front().handle());
  try {
    Elements& elements = *iterator_of(handle, worker).elements;
    if (elements.look_ahead() == nullptr) return std::nullopt;
    const std::uint64_t rows_before = elements.rows();
    Nest result = run_as(epoch.function, epoch.arguments, closure, worker);
    check_draws(!elements.is_ahead(), epoch.function.name());
    return EpochStep{
        .worker = worker, .examples = elements.rows() - rows_before, .result = std::move(result)};
  } catch (...) {
    Error error = current_error();
    if (!error.origin().empty()) throw;
    throw std::move(error).at("worker:" + std::to_string(worker));  // the worker whose data it was
  }
}

Nest EagerRuns::call(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker) {
  if (!fn.state()->registered_name.empty()) return call_registered(fn, arguments);
  std::vector<Nest> local;
  for (const Nest& argument : arguments) {
    local.push_back(argument.map_leaves([&](const Nest& leaf) COHORT_REQUIRES(
                                            context_.tracing) -> Nest {
      if (leaf.is_tensor()) return private_copy(leaf.tensor());
      if (leaf.kind() != Nest::Kind::handle) return leaf;
      const auto* handle = dynamic_cast<const IteratorHandle*>(leaf.handle().get());
      COHORT_CHECK(handle != nullptr, ErrorCode::invalid_argument,
                   "[coordinator.schedule] expected tensors, host values, per-worker iterators and "
                   "per-worker values as arguments, got a ",
                   leaf.handle()->handle_kind(), "; fetch() a remote value first");
      EagerIterator& local_one = iterator_of(*handle, worker);
      if (!handle->is_value()) return std::shared_ptr<Handle>(local_one.iterator);
      if (!local_one.value) local_one.value = made_value(*local_one.iterator);
      return local_one.value->map_leaves([](const Nest& part) -> Nest {
        return part.is_tensor() ? private_copy(part.tensor()) : part;
      });
    }));
  }
  return fn.call(local);
}

Nest EagerRuns::run_as(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure,
                       std::uint32_t worker) {
  try {
    detail::ParameterServerHome& home = *context_.home;
    const std::uint64_t seed = context_.connection.options().seed;
    const auto generator = cohort::internal::seed_default_generator(mix_seed(seed, closure));
    const function::WorkerIndexScope as_worker(worker);
    const function::StepScope numbered(closure, fn.name());
    const StrategyScope scope = context_.strategy.scope();
    const HiddenGradients gradients(home.variables().variables());
    EagerStep step(traffic_, EagerStep::Kind::scheduled, context_.data_timeout);
    Nest result;
    home.run_with_stand_ins(step, "coordinator.run_eagerly",
                            [&]() COHORT_REQUIRES(context_.tracing) {
                              result = sent(call(fn, arguments, worker), fn.name());
                            });
    return result;
  } catch (const c10::Error& error) {
    throw error_of_torch(error, ErrorCode::invalid_argument)
        .during("running '" + fn.name() + "' eagerly");
  } catch (...) {
    throw current_error().during("running '" + fn.name() + "' eagerly");
  }
}

// As on a worker, an error of the closure is the error of its result and of the next call.
void EagerRuns::run(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker,
                    RemoteState& result) {
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  ClosureId id = 0;
  {
    const RuntimeLock lock(context_);
    id = context_.numbers.next_closure++;
  }
  std::optional<Error> error;
  try {
    result.set(run_as(fn, arguments, id, worker));
  } catch (const Error& thrown) {
    error = thrown;
    result.fail(thrown);
  }
  const RuntimeLock lock(context_);
  count_end(error);
  if (error && !error_) error_ = std::move(error);
}

// Counts like a worker's report; the step counts as one of worker 0.
void EagerRuns::count_end(const std::optional<Error>& error) {
  const VariableTraffic traffic = std::exchange(traffic_, {});
  context_.totals.pulled_bytes += traffic.pulled_bytes;
  context_.totals.pushed_bytes += traffic.pushed_bytes;
  context_.count_end(error, Clock::system().now());
  if (!error) pool_.count_closure(0);
}

void EagerRuns::raise_error() {
  const RuntimeLock lock(context_);
  if (error_) throw Error(*std::exchange(error_, std::nullopt));
}

void EagerRuns::raise_error_in(EpochRun& epoch) {
  const RuntimeLock lock(context_);
  if (epoch.is_over || !error_) return;
  epoch.is_over = true;
  epoch.error = std::exchange(error_, std::nullopt);
  throw Error(*epoch.error);
}

std::optional<EpochStep> EagerRuns::next_step(EpochRun& epoch) {
  raise_error_in(epoch);
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  ClosureId id = 0;
  while (epoch.eager_worker < context_.connection.num_workers()) {
    {
      const RuntimeLock lock(context_);
      if (epoch.is_over && epoch.error) throw epoch_is_over();
      id = context_.numbers.next_closure++;
    }
    const std::uint32_t worker = epoch.eager_worker;
    try {
      std::optional<EpochStep> step = run_next(epoch, id, worker);
      const RuntimeLock lock(context_);
      if (!step) {
        epoch.progress.note_end(worker, epoch.progress.steps()[worker]);
        ++epoch.eager_worker;
        continue;
      }
      count_end(std::nullopt);
      step->index = epoch.progress.steps()[worker];
      epoch.progress.note_run(worker, step->index);
      return step;
    } catch (...) {
      const RuntimeLock lock(context_);
      epoch.is_over = true;
      epoch.error = current_error();
      count_end(epoch.error);
      throw;
    }
  }
  return std::nullopt;
}

void EagerRuns::release(const std::vector<std::uint64_t>& iterators) {
  if (!context_.options.run_eagerly) return;
  const Lock tracing(context_.tracing);
  std::erase_if(iterators_, [&](const auto& known) {
    return std::find(iterators.begin(), iterators.end(), known.first.first) != iterators.end();
  });
}

}  // namespace cohort::coordinator
