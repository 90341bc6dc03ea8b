// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/mirrored_variable.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/div.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/validation.h"

namespace cohort::internal {

std::uint32_t version_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return 0;
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

MirroredVariable::MirroredVariable(std::string name, std::vector<at::Tensor> tensors, Traits traits,
                                   std::shared_ptr<MirroredHome> home)
    : name_(std::move(name)),
      spec_(TensorSpec::of(tensors.at(0))),
      traits_(traits),
      home_(std::move(home)),
      tensors_(std::move(tensors)),
      // The tensors of a plain variable share the memory of the first one.
      states_(tensors_.begin(), traits.is_plain ? tensors_.begin() + 1 : tensors_.end()) {
  COHORT_CHECK(is_plain() || traits_.aggregation != VariableAggregation::mean ||
                   at::isFloatingType(spec_.dtype),
               ErrorCode::invalid_argument,
               "[variable.create] expected a floating-point variable for aggregation mean, got ",
               spec_.to_string(), " (variable '", name_,
               "'), whose mean may be no whole number; use sum or only_first_replica");
  COHORT_CHECK(is_plain() || !is_on_read() || traits_.aggregation != VariableAggregation::sum ||
                   spec_.dtype != at::kBool,
               ErrorCode::invalid_argument,
               "[variable.create] expected a variable of numbers for on_read with aggregation sum, "
               "got ",
               spec_.to_string(), " (variable '", name_,
               "'), which has no sum; use int64, or only_first_replica");
  for (const at::Tensor& tensor : tensors_) {
    variable::check_tensor(name_, tensor, traits_.is_trainable,
                           home_->devices().at(accumulators_.size()));
    accumulators_.push_back(accumulator_of(tensor));
  }
  for (std::size_t i = 0; i < size(); ++i) {
    names_.emplace_back(component(i), name_);
    components_.push_back(std::make_unique<ComponentVariable>(*this, i));
  }
}

MirroredVariable::~MirroredVariable() = default;

const at::Tensor& MirroredVariable::tensor() const {
  if (is_on_read() && SyncOnReadScope::is_here()) {
    const ReplicaContext* const replica = home_->replica_here();
    if (replica != nullptr) return synchronized(*replica);
  }
  const MirroredHome::Place place = home_->place_here();
  if (!place.is_of_owner) home_->check_use("tensor", name_);
  if (place.kind == MirroredHome::Place::Kind::all && size() > 1 && !is_handed_out_) {
    handed_out_version_ = version_of(component(0));
    is_handed_out_ = true;
    home_->agreement().note_handed_out();
  }
  return component(place.component);
}

// Autograd finds a tensor's accumulator by a weak pointer, which it assigns without a lock where it
// makes another one: that must not happen while another replica asks for it.
std::shared_ptr<const void> MirroredVariable::accumulator_of(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return nullptr;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(tensor));
  return std::make_shared<const Accumulator>(torch::autograd::impl::grad_accumulator(tensor));
}

std::vector<at::Tensor> MirroredVariable::other_tensors() const {
  std::vector<at::Tensor> others;
  const MirroredHome::Place place = home_->place_here();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_usable = place.kind == MirroredHome::Place::Kind::all || accumulators_[i];
    if (i != place.component && is_usable && component(i).requires_grad())
      others.push_back(component(i));
  }
  return others;
}

bool MirroredVariable::agrees() const { return are_copies_of(component(0)); }

bool MirroredVariable::are_copies_of(const at::Tensor& value) const {
  const at::Tensor wanted = value.detach().cpu().contiguous();
  if (wanted.nbytes() == 0) return true;  // it has no memory
  for (const at::Tensor& each : tensors_) {
    const at::Tensor own = each.detach().cpu().contiguous();
    const bool is_same_memory = own.data_ptr() == wanted.data_ptr();
    if (!is_same_memory && std::memcmp(own.data_ptr(), wanted.data_ptr(), wanted.nbytes()) != 0)
      return false;
  }
  return true;
}

void MirroredVariable::adopt_outside_write() {
  if (!is_handed_out_) return;
  const bool is_written =
      component(0).is_inference() ? !agrees() : version_of(component(0)) != handed_out_version_;
  if (!is_written) return;
  const c10::InferenceMode may_write(component(0).is_inference());
  const c10::NoGradGuard no_grad;  // after it, since InferenceMode(false) turns gradients on
  const Lock lock(mutex_);
  for (std::size_t i = 1; i < size(); ++i) component(i).copy_(component(0));
  note_writes();
}

void MirroredVariable::note_writes() { handed_out_version_ = version_of(component(0)); }

std::shared_ptr<VariableHome> MirroredVariable::home() const { return home_; }
void MirroredVariable::check_use(std::string_view method) const { home_->check_use(method, name_); }

bool MirroredVariable::is_tensor_current() const {
  if (home_->central() != nullptr && !home_->is_in_run()) return false;
  return !is_on_read() || (!SyncOnReadScope::is_here() && home_->is_in_replica());
}

void MirroredVariable::check_tensor_is_current(std::string_view call) const {
  COHORT_CHECK(home_->central() == nullptr || home_->is_in_run(), ErrorCode::failed_precondition,
               "[", call, "] expected a loss that run() computes for variable '", name_,
               "', whose value is on a parameter server, got one of outside, where tensor() may be "
               "an old copy; compute it in run()");
  if (!is_on_read()) return;
  COHORT_CHECK(!SyncOnReadScope::is_here(), ErrorCode::unimplemented, "[", call,
               "] expected a call outside of a SyncOnReadScope for variable '", name_,
               "', whose value is there the one of all replicas; end the scope before");
  COHORT_CHECK(home_->is_in_replica(), ErrorCode::failed_precondition, "[", call,
               "] expected a replica context for variable '", name_,
               "', whose replicas have different values; use read(), which combines them");
}

bool MirroredVariable::has_workers() const { return home_->has_workers(); }

std::vector<at::Tensor> MirroredVariable::values_to_reduce() const {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors_) {
    values.push_back(tensor.detach());
    if (traits_.aggregation == VariableAggregation::only_first_replica) break;
  }
  return values;
}

at::Tensor MirroredVariable::reduced(const std::vector<at::Tensor>& values) const {
  switch (traits_.aggregation) {
    case VariableAggregation::only_first_replica:
      return values.front().clone();
    case VariableAggregation::none:
      throw_error(ErrorCode::invalid_argument,
                  "[variable.read] expected an aggregation for variable '", name_,
                  "', which is synchronized on read, got none; make it with "
                  "VariableAggregation sum, mean or only_first_replica, or read it in run()");
    case VariableAggregation::sum:
    case VariableAggregation::mean:
      break;
  }
  const bool is_mean = traits_.aggregation == VariableAggregation::mean;
  const Reduction reduction(is_mean ? ReduceOp::mean : ReduceOp::sum, {}, "variable.read");
  const at::Tensor value = reduction.of(values);
  return value.is_alias_of(values.front()) ? value.clone() : value;
}

// All replicas make the call.
const at::Tensor& MirroredVariable::synchronized(const ReplicaContext& replica) const {
  const bool is_sum = traits_.aggregation == VariableAggregation::sum;
  if (is_sum || traits_.aggregation == VariableAggregation::mean) {
    return SyncOnReadScope::kept(*this, replica.all_reduce(is_sum ? ReduceOp::sum : ReduceOp::mean,
                                                           component(home_->component_here())));
  }
  const at::Tensor value =
      StrategyAccess::merge(replica, "tensor() of a variable that is synchronized on read",
                            [this](Strategy&) { return home_->reduced_over_all({this})[0]; });
  return SyncOnReadScope::kept(
      *this, on_device(value.clone(), component(home_->component_here()).device()));
}

at::Tensor MirroredVariable::copy() const {
  home_->check_use("read", name_);
  if (home_->central() != nullptr && !home_->is_in_run()) return {};
  COHORT_CHECK(!is_on_read() || !SyncOnReadScope::is_here(), ErrorCode::unimplemented,
               "[variable.read] expected a call outside of a SyncOnReadScope for variable '", name_,
               "'; in a replica use tensor(), which is there the value of all replicas");
  if (!is_on_read() || home_->is_in_replica())
    return component(home_->component_here()).detach().clone();
  if (has_workers()) return home_->reduced_over_all({this})[0];
  const Lock lock(mutex_);
  return reduced(values_to_reduce());
}

Variable MirroredVariable::component_variable(std::size_t i) {
  if (size() == 1 && !has_workers()) return Variable(shared_from_this());
  // A handle of the component owns the container.
  return Variable(std::shared_ptr<VariableImpl>(shared_from_this(), components_.at(i).get()));
}

// A version of a plain variable's tensor tells nothing of writes through another one.
void MirroredVariable::tell_autograd(std::size_t i) const {
  if (!is_plain()) return component(i).unsafeGetTensorImpl()->bump_version();
  for (const at::Tensor& tensor : tensors_) tensor.unsafeGetTensorImpl()->bump_version();
}

// Counts what is written into value i until its end as known; replicas may do so side by side.
class MirroredVariable::KnownWrite {
 public:
  KnownWrite(MirroredVariable& variable, std::size_t i)
      : variable_(variable), i_(i), before_(versions()) {}
  ~KnownWrite() { variable_.known_versions_ += versions() - before_; }
  KnownWrite(const KnownWrite&) = delete;
  KnownWrite& operator=(const KnownWrite&) = delete;

 private:
  std::uint64_t versions() const {
    return variable_.is_plain() ? variable_.versions() : version_of(variable_.component(i_));
  }

  MirroredVariable& variable_;
  const std::size_t i_;
  const std::uint64_t before_;
};

void MirroredVariable::write_value(std::size_t i, const VariableWrite& write) {
  CentralCopies* const central = home_->central();
  // The end of a run combines what replicas have in a variable that is synchronized on read.
  if (central != nullptr && !(is_on_read() && central->are_in_use()))
    return central->write(*this, write);
  const c10::NoGradGuard no_grad;
  std::optional<KnownWrite> known;
  if (is_plain()) known.emplace(*this, i);
  const at::Tensor& own = component(i);
  // Rows are changed on the CPU.
  const at::Tensor value =
      write.row_ids.defined() ? write.value : on_device(write.value, own.device());
  const std::uint32_t before = version_of(own);
  variable::change_in_place(own, write_effect(write.kind, value, write.row_ids));
  if (is_plain() || version_of(own) == before) tell_autograd(i);  // programs count no writes
}

void MirroredVariable::check_write_all(Effect::Kind kind) const {
  COHORT_CHECK(!is_on_read() || kind == Effect::Kind::assign ||
                   traits_.aggregation != VariableAggregation::sum,
               ErrorCode::invalid_argument, "[", variable::call_name(kind),
               "] expected a replica context for variable '", name_,
               "', whose value is the sum of its replicas; assign a whole value, or add in "
               "run()");
}

void MirroredVariable::check_scatter(Effect::Kind kind) const {
  // With one replica, too: the program would fail only with more of them.
  const bool is_read_together = traits_.synchronization == VariableSynchronization::on_read;
  COHORT_CHECK(!is_read_together || is_plain(), ErrorCode::unimplemented, "[",
               variable::call_name(kind),
               "] expected a variable that is synchronized on write, got '", name_,
               "', which is synchronized on read; assign a whole value");
  const bool is_combined = traits_.aggregation == VariableAggregation::sum ||
                           traits_.aggregation == VariableAggregation::mean;
  const bool can_combine = kind != Effect::Kind::scatter_min && kind != Effect::Kind::scatter_max &&
                           kind != Effect::Kind::scatter_update;
  const bool is_alone = tensors_.size() == 1 && !has_workers();
  COHORT_CHECK(!is_combined || can_combine || is_alone, ErrorCode::unimplemented, "[",
               variable::call_name(kind), "] expected variable '", name_,
               "' to have aggregation none or only_first_replica, got ",
               traits_.aggregation == VariableAggregation::sum ? "sum" : "mean",
               "; use scatter_add, scatter_sub, scatter_mul or scatter_div");
}

void MirroredVariable::write_all(const VariableWrite& write) {
  if (CentralCopies* const central = home_->central()) return central->write(*this, write);
  const c10::NoGradGuard no_grad;
  const Lock lock(mutex_);
  // A value that is a view of a component would change while it is read.
  const auto fixed = [&](const at::Tensor& given) {
    const auto is_in = [&](const at::Tensor& tensor) { return given.is_alias_of(tensor); };
    const bool is_own = given.defined() && std::ranges::any_of(tensors_, is_in);
    return is_own ? given.detach().clone() : given;
  };
  VariableWrite own{write.variable, write.kind, fixed(write.value), fixed(write.row_ids)};
  const bool is_split = is_on_read() && traits_.aggregation == VariableAggregation::sum;
  if (!is_split) {
    for (std::size_t i = 0; i < size(); ++i) write_value(i, own);
    if (write.kind == Effect::Kind::assign) allow_difference(false);
    return;
  }
  COHORT_ASSERT(write.kind == Effect::Kind::assign);  // other writes are refused before
  const at::Tensor source = own.value;
  const auto replicas = static_cast<std::int64_t>(home_->replicas_in_sync());
  if (!at::isIntegralType(spec_.dtype, /*includeBool=*/true)) {
    own.value = at::div(source, replicas);
    for (std::size_t i = 0; i < size(); ++i) write_value(i, own);
    return;
  }
  // The first replica gets what the division of integers leaves over.
  const at::Tensor share = at::div(source, replicas, "trunc").to(spec_.dtype);
  const bool has_first = !has_workers() || home_->workers()->own() == 0;
  own.value = has_first ? source.sub(share.mul(replicas - 1)) : share;
  write_value(0, own);
  own.value = share;
  for (std::size_t i = 1; i < size(); ++i) write_value(i, own);
}

VariableRecord::Value MirroredVariable::value_record(std::size_t i, const StateWalk& walk) const {
  VariableRecord::Value value{component(i).detach()};
  if (walk.has_slots)
    value.slots = walk.has_gaps ? states_[i].slots_with_gaps() : states_[i].all_slots(name_);
  return value;
}

// Replicas that must be equal get one value, also if a step that failed has left them different.
VariableRecord MirroredVariable::record(const StateWalk& walk) const {
  VariableRecord record{.name = name_, .spec = spec_};
  const std::size_t count = must_agree() ? 1 : size();
  for (std::size_t i = 0; i < count; ++i) record.values.push_back(value_record(i, walk));
  return record;
}

void MirroredVariable::take(const VariableRecord& record, bool may_keep) {
  const std::size_t given = record.values.size();
  for (std::size_t i = 0; i < size(); ++i)
    take(i, record.values.at(std::min(i, given - 1)), may_keep && i < given);
  allow_difference(given > 1);
  note_writes();
}

void MirroredVariable::take(std::size_t i, const VariableRecord::Value& value, bool may_keep) {
  const c10::InferenceMode may_write(component(i).is_inference());
  const c10::NoGradGuard no_grad;  // after it, since InferenceMode(false) turns gradients on
  const Lock lock(mutex_);
  if (!value.tensor.is_alias_of(component(i))) component(i).copy_(value.tensor);
  states_[i].take_slots(value.slots, may_keep);
}

VariableState::Reserve MirroredVariable::reserve(std::size_t i, const SlotKey& key,
                                                 const at::Tensor& gradient,
                                                 std::span<const double> hyper) const {
  return states_[i].reserve(key, gradient, hyper, name_);
}

void MirroredVariable::apply(std::size_t i, const SlotKey& key, VariableState::Reserve reserve,
                             std::span<const double> hyper) {
  const KnownWrite known(*this, i);
  at::Tensor own = component(i);
  states_[i].apply(key, std::move(reserve), own, hyper);
  // Autograd must detect it if a graph that saved the old value is run backwards later.
  tell_autograd(i);
}

void MirroredVariable::drop_other_slots(const SlotKey& key) {
  for (std::size_t i = 1; i < size(); ++i) states_[i].drop_slots(key);
}

void MirroredVariable::note_new_values() const {
  for (std::size_t i = 0; i < size(); ++i) tell_autograd(i);
}

std::uint64_t MirroredVariable::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& each : tensors_) sum += version_of(each);
  return sum;
}

void MirroredVariable::apply_to_all(const SlotKey& key, VariableState::Reserve reserve,
                                    const at::Tensor& gradient, std::span<const double> hyper) {
  apply(0, key, std::move(reserve), hyper);
  for (std::size_t i = 1; i < size(); ++i) {
    const KnownWrite known(*this, i);
    states_[i].follow(states_[0], key, this->reserve(i, key, gradient, hyper));
    tell_autograd(i);
  }
}

}  // namespace cohort::internal
