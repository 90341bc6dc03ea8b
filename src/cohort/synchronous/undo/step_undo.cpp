// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/undo/step_undo.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/replicas/replica_random.h"
#include "cohort/replicas/saved_generator.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"

namespace cohort::internal {
namespace {

bool are_bytes(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

// Copies a component, into `copy` if that has its form.
void copy_component(const at::Tensor& component, at::Tensor& copy) {
  const bool has_form = copy.defined() && copy.sizes() == component.sizes() &&
                        copy.scalar_type() == component.scalar_type() &&
                        copy.device() == component.device();
  if (!has_form) {
    const c10::InferenceMode off(false);
    copy = at::empty(component.sizes(), component.options().requires_grad(false));
  }
  if (are_bytes(component)) {
    if (component.nbytes() > 0)
      std::memcpy(copy.data_ptr(), component.data_ptr(), component.nbytes());
    return;
  }
  const c10::NoGradGuard no_grad;
  copy.copy_(component.detach());
}

// Leaves a component that has not changed as it is, so that autograd sees no write.
void write_back(const at::Tensor& copy, const at::Tensor& component) {
  const bool is_of_one_form = copy.sizes() == component.sizes();
  if (is_of_one_form && are_bytes(component) &&
      (copy.nbytes() == 0 ||
       std::memcmp(copy.data_ptr(), component.data_ptr(), copy.nbytes()) == 0)) {
    return;
  }
  const c10::InferenceMode may_write(component.is_inference());
  const c10::NoGradGuard no_grad;  // after it, since InferenceMode(false) turns gradients on
  if (!is_of_one_form) component.resize_(copy.sizes());
  component.copy_(copy);
}

std::int64_t bytes_of_values(const MirroredVariable& variable) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < variable.size(); ++i)
    bytes += static_cast<std::int64_t>(variable.component(i).nbytes());
  return bytes;
}

}  // namespace

StepUndo::StepUndo(const std::vector<c10::Device>& devices)
    : journals_(devices.size()),
      first_device_(devices.at(0)),
      of_cpu_(std::make_unique<SavedGenerator>()),
      of_gpu_(std::make_unique<SavedGenerator>()) {}

StepUndo::~StepUndo() = default;

void StepUndo::watch(const std::shared_ptr<MirroredVariable>& variable) {
  const Lock lock(mutex_);
  new_.push_back(variable);
  has_new_ = true;
}

// The small ones first, so that one large buffer does not keep the statistics of BatchNorm out.
void StepUndo::choose_watched() {
  {
    const Lock lock(mutex_);
    for (auto& variable : new_) watched_.push_back({std::move(variable)});
    new_.clear();
    has_new_ = false;
  }
  std::vector<std::pair<std::int64_t, std::size_t>> sizes;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (const auto variable = watched_[i].weak.lock())
      sizes.emplace_back(bytes_of_values(*variable), i);
  }
  std::ranges::sort(sizes);
  std::int64_t sum = 0;
  std::string left_out;
  for (const auto& [bytes, i] : sizes) {
    sum += bytes;
    watched_[i].fits = sum <= kBytesMax;
    if (watched_[i].fits) continue;
    watched_[i].copies.clear();
    if (left_out.empty())
      left_out = "'" + watched_[i].weak.lock()->name() + "' (" + std::to_string(bytes >> 20) +
                 " MiB in all replicas)";
  }
  if (left_out.empty() || has_warned_.exchange(true)) return;
  log_warn("[strategy.run] expected buffers and other variables that no optimizer trains of at ",
           "most ", kBytesMax >> 20, " MiB, got ", sum >> 20, " MiB; of ", left_out,
           " and larger ones no copy is made when a step begins, so a step that fails keeps what "
           "it has written into them: load saved values before such a step is made again");
}

bool StepUndo::begin(const Options& options) {
  {
    const Lock lock(mutex_);
    if (open_++ > 0) {
      has_overlapped_ = true;
      return false;
    }
    has_overlapped_ = false;
  }
  draws_ = options.is_only_replica;
  save_generators();
  const bool writes = options.written == nullptr || !options.written->empty();
  if (has_new_) choose_watched();
  bool has_expired = false;
  for (Watched& each : watched_) {
    if (!writes || !each.fits) continue;
    each.variable = each.weak.lock();
    if (each.variable == nullptr) {
      has_expired = true;
      continue;
    }
    if (options.written != nullptr && !options.written->contains(each.variable.get())) {
      each.variable = nullptr;
      continue;
    }
    each.copies.resize(each.variable->size());
    each.may_differ = each.variable->may_differ();
    for (std::size_t i = 0; i < each.copies.size(); ++i)
      copy_component(each.variable->component(i), each.copies[i]);
  }
  if (has_expired) {
    std::erase_if(watched_, [](const Watched& each) { return each.weak.expired(); });
    has_new_ = true;  // others may fit now
  }
  is_in_step_ = true;
  return true;
}

void StepUndo::end(bool is_alone, bool has_failed) {
  if (is_alone) {
    is_in_step_ = false;
    if (has_failed && !has_overlapped_) {
      undo_step();
    } else if (has_failed && !watched_.empty()) {
      log_warn(
          "[strategy.run] a step has failed while another one of the strategy was in progress "
          "on another thread, so what it has written into buffers is not undone");
    }
    for (Watched& each : watched_) each.variable = nullptr;
    for (std::vector<Value>& journal : journals_) journal.clear();
    of_cpu_->forget();
    of_gpu_->forget();
  }
  const Lock lock(mutex_);
  --open_;
}

void StepUndo::undo_step() {
  const auto restore = [](MirroredVariable& variable, std::size_t i, const at::Tensor& copy) {
    write_back(copy, variable.component(i));
  };
  for (Watched& each : watched_) {
    if (each.variable == nullptr) continue;
    for (std::size_t i = 0; i < each.copies.size(); ++i) restore(*each.variable, i, each.copies[i]);
    each.variable->allow_difference(each.may_differ);
  }
  for (const std::vector<Value>& journal : journals_) {
    for (auto value = journal.rbegin(); value != journal.rend(); ++value) {
      restore(*value->variable, value->index, value->copy);
      value->variable->allow_difference(value->may_differ);
    }
  }
  of_cpu_->restore();
  of_gpu_->restore();
}

void StepUndo::save_generators() {
  if (!draws_) return;
  const auto save = [](at::Generator generator, SavedGenerator& saved) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    saved.save(generator);
  };
  const function::GeneratorScope* const caller = function::GeneratorScope::current();
  if (caller == nullptr) {
    save(at::detail::getDefaultCPUGenerator(), *of_cpu_);
  } else if (caller->made_generator().defined()) {
    save(caller->made_generator(), *of_cpu_);
  }
  if (first_device_.is_cuda()) save(at::globalContext().defaultGenerator(first_device_), *of_gpu_);
}

void StepUndo::copy_values(std::size_t replica) {
  for (Watched& each : watched_) {
    if (each.variable == nullptr || replica >= each.copies.size()) continue;
    copy_component(each.variable->component(replica), each.copies[replica]);
    // The same for all replicas by now, or on the way to be so.
    if (replica == 0) each.may_differ = each.variable->may_differ();
  }
  journals_[replica].clear();
}

void StepUndo::note_update(std::size_t replica) {
  if (!is_in_step_ || has_overlapped_) return;
  copy_values(replica);
  RunSeed::note_update();
  save_generators();
}

void StepUndo::about_to_write(MirroredVariable& variable, std::size_t value, std::size_t replica) {
  if (!is_in_step_ || has_overlapped_) return;
  const auto is_this = [&](const Watched& each) { return each.variable.get() == &variable; };
  if (std::ranges::any_of(watched_, is_this)) return;
  std::vector<Value>& journal = journals_[replica];
  const bool is_known = std::ranges::any_of(journal, [&](const Value& known) {
    return known.variable.get() == &variable && known.index == value;
  });
  if (is_known) return;
  if (bytes_of_values(variable) > kBytesMax) return;
  Value before{variable.shared_from_this(), value, {}, variable.may_differ()};
  copy_component(variable.component(value), before.copy);
  journal.push_back(std::move(before));
}

StepUndo::Scope::Scope(StepUndo* undo, const Options& options)
    : undo_(undo), is_alone_(undo != nullptr && undo->begin(options)) {}

StepUndo::Scope::~Scope() {
  if (undo_ != nullptr) undo_->end(is_alone_, has_failed_);
}

void StepUndo::keep_merged() {
  if (!is_in_step_ || has_overlapped_) return;
  for (std::size_t replica = 0; replica < journals_.size(); ++replica) copy_values(replica);
  RunSeed::note_update_of_all();
  save_generators();
}

}  // namespace cohort::internal
