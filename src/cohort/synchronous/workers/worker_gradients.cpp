// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/worker_gradients.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <utility>

#include "cohort/core/bytes.h"
#include "cohort/core/random.h"
#include "cohort/replicas/replica_random.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/workers/compared_values.h"
#include "cohort/synchronous/workers/gathered_rows.h"
#include "cohort/workers/shares.h"
#include "cohort/workers/step_header.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

constexpr std::size_t kPlansMax = 64;

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); }

std::uint64_t hash_of(const StepNumbers& numbers) {
  std::uint64_t hash = numbers.values.size();
  for (const double number : numbers.values)
    hash = mix_seed(hash, std::bit_cast<std::uint64_t>(number));
  if (numbers.are_trained == nullptr) return hash;
  for (std::size_t i = 0; i < numbers.are_trained->size(); ++i) {
    if (!(*numbers.are_trained)[i]) hash = mix_seed(hash, i);
  }
  return hash;
}

// `names`: of the variables.
std::string text_of_frozen(const StepNumbers& numbers, const std::vector<std::string>& names) {
  if (numbers.are_trained == nullptr) return {};
  std::string frozen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!(*numbers.are_trained)[i]) frozen += (frozen.empty() ? "'" : ", '") + names[i] + "'";
  }
  return "\na step in which " +
         (frozen.empty() ? "all parameters require" : "all but " + frozen + " require") +
         " a gradient";
}

// With all digits, so that the texts differ if the numbers do.
std::string text_of(const StepNumbers& numbers) {
  std::string text = "\noptimizer '" + std::string(numbers.optimizer) + "'";
  for (std::size_t i = 0; i < numbers.values.size(); ++i) {
    char digits[32];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), numbers.values[i]);
    text += (i == 0 ? ": " : ", ") + std::string(numbers.names[i % numbers.names.size()]) + " " +
            std::string(std::begin(digits), end.ptr);
  }
  return text;
}

}  // namespace

// The agreement of the workers on steps of one kind.
struct WorkerGradients::Plan {
  std::string call;
  std::string what;
  std::vector<std::string> names;  // of the variables
  std::string text;                // Step::text()
  std::uint64_t fingerprint = 0;
  std::uint64_t steps = 0;
  std::vector<Layout> layouts;
  std::vector<std::int64_t> sparse_dimensions;  // of the variables that have sparse gradients
  std::shared_ptr<const EarlyKind> early;       // nullptr: all gradients travel in one call
};

struct WorkerGradients::Step {
  std::string_view call;
  std::string_view what;
  std::span<const Variable> variables;
  std::vector<Reduction::Parts>& sums;
  const StateText& state;
  Wanted wanted;
  EarlyPass* pass;  // nullptr: the sums are in memory of their own

  bool is_of(const Plan& plan) const {
    return plan.call == call && plan.what == what &&
           std::ranges::equal(variables, plan.names, {}, &Variable::name);
  }
  // A dense one, in memory of its own.
  at::Tensor value_to_send(std::size_t i) const {
    const at::Tensor& value = sums[i].value;
    if (layout(i) != Layout::dense)
      return nothing_to_add(*variables[i].spec().sizes, variables[i].spec().dtype);
    return on_cpu(pass == nullptr ? value : value.clone(at::MemoryFormat::Contiguous));
  }
  bool is_early(const Plan& plan) const {
    return pass != nullptr && pass->kind() == plan.early && pass->sends();
  }
  // Whether something has written values. For TorchOptimizer that is not known: each step does.
  bool is_written() const {
    return call == kApplyCall && std::ranges::any_of(variables, [](const auto& v) {
             return target_of(v).variable.has_other_values();
           });
  }
  Layout layout(std::size_t i) const {
    if (!sums[i].value.defined()) return Layout::none;
    return sums[i].is_sparse() ? Layout::sparse : Layout::dense;
  }
  std::string text() const {
    std::string text = std::string(call) + "(" + std::string(what) + ")";
    for (const Variable& each : variables)
      text += "\nvariable '" + each.name() + "' " + each.spec().to_string();
    return text;
  }
};

WorkerGradients::WorkerGradients(std::shared_ptr<StrategyWorkers> workers)
    : workers_(std::move(workers)), early_(workers_) {}
WorkerGradients::~WorkerGradients() = default;

void WorkerGradients::sum(std::string_view call, std::string_view what,
                          std::span<const Variable> variables, std::vector<Reduction::Parts>& sums,
                          const StepNumbers& numbers, const StateText& state, Wanted wanted) {
  const c10::NoGradGuard no_grad;
  EarlyPass* const pass = call == kApplyCall ? early_.finished(what, variables) : nullptr;
  const Step step{call, what, variables, sums, state, wanted, pass};
  Plan& plan = plan_for(step);
  if (plan.steps == 0 || !reduce_planned(plan, step, numbers)) agree(plan, step, numbers);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (plan.layouts[i] == Layout::sparse) gather_sparse(plan, step, i);
  }
  ++plan.steps;
}

WorkerGradients::Plan& WorkerGradients::plan_for(const Step& step) {
  if (epoch_ != workers_->epoch()) {
    plans_.clear();
    early_.forget_all();
  }
  epoch_ = workers_->epoch();
  for (auto one = plans_.begin(); one != plans_.end(); ++one) {
    if (!step.is_of(**one)) continue;
    plans_.splice(plans_.begin(), plans_, one);
    return *plans_.front();
  }
  if (plans_.size() >= kPlansMax) plans_.pop_back();
  auto plan = std::make_unique<Plan>();
  plan->call = step.call;
  plan->what = step.what;
  for (const Variable& each : step.variables) plan->names.push_back(each.name());
  plan->text = step.text();
  plan->fingerprint = mix_seed(step.variables.size(), plan->text);
  plan->layouts.assign(step.variables.size(), Layout::none);
  plan->sparse_dimensions.assign(step.variables.size(), 1);
  plans_.push_front(std::move(plan));
  return *plans_.front();
}

// The workers tell each other what they have, and reduce what the plan did not contain.
void WorkerGradients::agree(Plan& plan, const Step& step, const StepNumbers& numbers) {
  const auto make = [&]() -> StrategyWorkers::Message {
    ByteWriter writer;
    writer.u8(RunSeed::is_taken_here() ? 1 : 0);
    for (std::size_t i = 0; i < step.variables.size(); ++i) {
      writer.u8(static_cast<std::uint8_t>(step.layout(i)));
      writer.zigzag(step.sums[i].is_sparse() ? step.sums[i].indices.size(0) : 0);
    }
    return {text_of(plan, numbers), writer.take()};
  };
  const std::vector<Bytes> all = workers_->exchange({.call = step.call}, make);
  std::vector<Layout> layouts(step.variables.size(), Layout::none);
  std::vector<std::size_t> first_with(step.variables.size(), 0);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    ByteReader reader(all[worker], step.call);
    if (reader.u8() != 0) RunSeed::take_here();
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const auto own = static_cast<Layout>(reader.u8());
      const std::int64_t dimensions = reader.zigzag();
      if (own == Layout::sparse) plan.sparse_dimensions[i] = dimensions;
      if (own == Layout::none) continue;
      COHORT_CHECK(layouts[i] == Layout::none || layouts[i] == own, ErrorCode::invalid_argument,
                   "[", step.call, "] expected gradients of one layout on all workers, got ",
                   layouts[i] == Layout::sparse ? "sparse" : "dense", " ones of variable '",
                   step.variables[i].name(), "' on ",
                   workers_->name_of(static_cast<int>(first_with[i])), " and ",
                   own == Layout::sparse ? "sparse" : "dense", " ones on ",
                   workers_->name_of(static_cast<int>(worker)), "; use it in the same way on each");
      if (layouts[i] == Layout::none) first_with[i] = worker;
      layouts[i] = own;
    }
  }
  compare_values(*workers_, step.call, step.variables,
                 step.state);  // before the plan changes: the step may be made again
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    // One that no worker has now may come back: the plan keeps it.
    if (layouts[i] == Layout::none || layouts[i] == plan.layouts[i]) continue;
    plan.layouts[i] = layouts[i];
    if (layouts[i] == Layout::dense) pending.push_back(i);
  }
  if (!pending.empty()) reduce_dense(plan, step, pending);
  if (plan.call != kApplyCall) return;
  std::vector<std::size_t> dense;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (plan.layouts[i] == Layout::dense) dense.push_back(i);
  }
  plan.early = early_.expect(plan.what, step.variables, std::move(dense));
}

std::string WorkerGradients::text_of(const Plan& plan, const StepNumbers& numbers) const {
  const EarlyGradients::Options& options = early_.options();
  return plan.text + "\na step after " + std::to_string(workers_->num_elements()) +
         " elements of distributed datasets" + text_of_frozen(numbers, plan.names) +
         internal::text_of(numbers) + "\ngradients " +
         (options.sends_bfloat16 ? "as bfloat16 " : "") + "in packs of " +
         std::to_string(options.bytes_per_pack) + " bytes, " + (options.is_wanted ? "" : "not ") +
         "overlapped with the backward pass";
}

// In place: the sums are in memory of their own.
void WorkerGradients::reduce_dense(const Plan& plan, const Step& step,
                                   const std::vector<std::size_t>& which) {
  std::vector<at::Tensor> tensors;
  for (const std::size_t i : which) {
    Reduction::Parts& parts = step.sums[i];
    const at::ScalarType type = step.variables[i].spec().dtype;
    parts = {.value = step.value_to_send(i), .type = type};
    tensors.push_back(parts.value);
  }
  reduce_as_wanted(plan, step, which, tensors);
  for (std::size_t k = 0; k < which.size(); ++k) step.sums[which[k]].value = tensors[k];
}

// `tensors`: of the variables `which`, after the header if there is one. A tensor of which this
// worker gets a share is replaced by it.
void WorkerGradients::reduce_as_wanted(const Plan& plan, const Step& step,
                                       const std::vector<std::size_t>& which,
                                       std::vector<at::Tensor>& tensors) {
  if (step.wanted == Wanted::sums) return all_reduce(plan, tensors);
  const std::size_t headers = tensors.size() - which.size();
  std::vector<at::Tensor> shared, whole;
  std::vector<std::size_t> places;
  for (std::size_t k = 0; k < which.size(); ++k) {
    const at::Tensor& tensor = tensors[headers + k];
    const bool is_whole = target_of(step.variables[which[k]]).variable.is_on_read();
    (is_whole ? whole : shared).push_back(tensor);
    if (!is_whole) places.push_back(headers + k);
  }
  sum_shares(*workers_, {.call = plan.call, .text = plan.text},
             headers == 0 ? at::Tensor() : tensors[0], StepHeader::kSurprises, shared);
  for (std::size_t k = 0; k < places.size(); ++k) tensors[places[k]] = shared[k];
  if (!whole.empty()) all_reduce(plan, whole);
}

// If bfloat16 is sent, tensors of other types than float32 keep their type.
void WorkerGradients::all_reduce(const Plan& plan, const std::vector<at::Tensor>& tensors) {
  const WorkerRequest request{.call = plan.call, .text = plan.text};
  const EarlyGradients::Options& options = early_.options();
  if (!options.sends_bfloat16 && options.bytes_per_pack == 0)
    return workers_->all_reduce(request, tensors);
  std::vector<at::Tensor> sent = tensors;
  for (at::Tensor& tensor : sent) {
    if (options.sends_bfloat16 && tensor.scalar_type() == at::kFloat)
      tensor = tensor.to(at::kBFloat16);
  }
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : sent) sizes.push_back(static_cast<std::int64_t>(tensor.nbytes()));
  std::span<const at::Tensor> left = sent;
  for (const std::vector<std::int64_t>& pack : packs_of(sizes, options.bytes_per_pack)) {
    workers_->all_reduce(request, left.first(pack.size()));
    left = left.subspan(pack.size());
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (!sent[i].is_same(tensors[i])) tensors[i].copy_(sent[i]);
  }
}

// Returns false if some worker has a gradient that the plan does not contain.
bool WorkerGradients::reduce_planned(Plan& plan, const Step& step, const StepNumbers& numbers) {
  const std::size_t count = step.variables.size();
  StepHeader header(count, static_cast<std::uint64_t>(workers_->count()), plan.early != nullptr);
  header.set_alike(StepHeader::kSteps, mix_seed(mix_seed(plan.fingerprint, hash_of(numbers)),
                                                workers_->num_elements()));
  if (std::has_single_bit(plan.steps + 1)) {
    std::uint64_t hash = mix_seed(0, step.state());
    for (const Variable& each : step.variables) hash = mix_seed(hash, hash_of_value(each));
    header.set_alike(StepHeader::kValues, hash);
  }
  header.set(StepHeader::kWritten, step.is_written());
  header.set(StepHeader::kRandom, RunSeed::is_taken_here());
  header.set(StepHeader::kStop, workers_->wants_stop());
  std::vector<std::size_t> planned;
  for (std::size_t i = 0; i < count; ++i) {
    const Layout layout = step.layout(i);
    const bool is_planned = layout == plan.layouts[i];
    header.set(StepHeader::kFirstMask + i, is_planned && layout != Layout::none);
    if (!is_planned && layout != Layout::none) header.set(StepHeader::kSurprises, true);
    if (plan.layouts[i] == Layout::dense) planned.push_back(i);
  }
  std::vector<at::Tensor> tensors = {header.tensor()};
  if (plan.early == nullptr) {
    for (const std::size_t i : planned) tensors.push_back(step.value_to_send(i));
  } else {
    header.set(header.early(), step.is_early(plan));
    header.set(header.unready(), !early_.is_ready(*plan.early));
  }
  reduce_as_wanted(plan, step, planned, tensors);
  if (!header.are_alike(StepHeader::kSteps)) {
    // Throws on all workers, since what is exchanged differs.
    workers_->exchange({.call = plan.call, .text = text_of(plan, numbers)},
                       [] { return StrategyWorkers::Message{}; });
  }
  workers_->note_stop(header.get(StepHeader::kStop) > 0);
  if (header.get(StepHeader::kRandom) > 0) RunSeed::take_here();
  if (!header.are_alike(StepHeader::kValues) || header.get(StepHeader::kWritten) > 0)
    compare_values(*workers_, step.call, step.variables, step.state);
  if (plan.early != nullptr) reduce_after_header(plan, step, planned, header, tensors);
  for (std::size_t k = 0; k < planned.size(); ++k) {
    const std::size_t i = planned[k];
    // No worker has a dense gradient; one that has a sparse one is a surprise.
    if (header.get(StepHeader::kFirstMask + i) == 0) continue;
    if (step.layout(i) == Layout::sparse) continue;  // agree() refuses it
    step.sums[i] = {.value = tensors[k + 1], .type = step.variables[i].spec().dtype};
  }
  return header.get(StepHeader::kSurprises) == 0;
}

// All workers make the same step. Adds the sums of the planned gradients to `tensors`.
void WorkerGradients::reduce_after_header(Plan& plan, const Step& step,
                                          const std::vector<std::size_t>& planned,
                                          const StepHeader& header,
                                          std::vector<at::Tensor>& tensors) {
  const std::int64_t early = header.get(header.early());
  if (early == workers_->count()) {
    std::vector<at::Tensor> own(step.variables.size());
    for (const std::size_t i : planned) {
      if (step.layout(i) == Layout::dense) own[i] = step.sums[i].value;
    }
    try {
      const std::vector<at::Tensor> sums = step.pass->sums(own);
      for (const std::size_t i : planned) tensors.push_back(sums[i]);
    } catch (...) {
      workers_->note_failure(current_error().code());
      throw;
    }
    return;
  }
  // The sums that some have sent early are of no use. The gradients themselves are as they were.
  if (early > 0) early_.stop();
  std::vector<at::Tensor> together;
  for (const std::size_t i : planned) together.push_back(step.value_to_send(i));
  all_reduce(plan, together);
  tensors.insert(tensors.end(), together.begin(), together.end());
  if (early > 0 || header.get(header.unready()) > 0)
    plan.early = early_.agree(plan.early, step.pass);
}

void WorkerGradients::gather_sparse(const Plan& plan, const Step& step, std::size_t i) {
  Reduction::Parts& parts = step.sums[i];
  const std::vector<std::int64_t>& sizes = *step.variables[i].spec().sizes;
  const at::ScalarType type = step.variables[i].spec().dtype;
  const std::int64_t dimensions = plan.sparse_dimensions[i];
  const bool is_given = parts.value.defined();
  if (!is_given) {
    std::vector<std::int64_t> of_rows(sizes.begin() + dimensions, sizes.end());
    of_rows.insert(of_rows.begin(), 0);
    parts = {.value = at::empty(of_rows, at::TensorOptions(type_of_sum(type))),
             .type = type,
             .indices = at::empty({dimensions, 0}, at::kLong),
             .sizes = sizes};
  }
  const std::string text =
      "the rows of " + step.variables[i].spec().to_string() + " '" + step.variables[i].name() + "'";
  const WorkerRequest request{.call = plan.call, .text = text};
  const bool are_rows = dimensions == 1 && type_of_sum(type) == type;
  if (are_rows && is_given) prepare_to_gather(parts);
  parts.indices = workers_->all_gather(request, on_cpu(parts.indices), 1);
  parts.value = workers_->all_gather(request, on_cpu(parts.value), 0);
  // If there is nothing, no worker has a gradient.
  if (parts.indices.size(1) == 0) {
    parts = {};
  } else if (are_rows) {
    add_gathered_rows(parts);
  }
}

}  // namespace cohort::internal
