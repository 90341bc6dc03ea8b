// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/saved_values.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <utility>

#include "cohort/core/atomic_file.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/function/trace.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/safetensors.h"
#include "cohort/variable/safetensors_file.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using variable::bytes_of;

void check_outside_steps(std::string_view call) {
  COHORT_CHECK(variable::ReplicaCount::current() == 1 && function::Trace::current() == nullptr,
               ErrorCode::failed_precondition, "[variable.", call,
               "] expected a call outside of run() and of steps, got one inside; make it between "
               "two runs");
}

void write_saved_file(const std::string& path, const std::map<std::string, at::Tensor>& values,
                      const VariableHome::FileTurn& turn) {
  std::map<std::string, TensorSpec> specs;
  for (const auto& [key, value] : values) specs.emplace(key, TensorSpec::of(value));
  std::map<std::string, std::uint32_t> checksums;
  for (const auto& [key, value] : values) checksums.emplace(key, crc32c(bytes_of(value)));
  const variable::NewHeader header = variable::make_header(specs, checksums);
  AtomicFile file(path, "variable.save_values", turn.order);
  variable::write_safetensors(file, header, [&](const std::string& key) { return values.at(key); });
  file.commit(turn.check);
}

}  // namespace

void save_values(const std::string& path, const std::map<std::string, Variable>& variables) {
  check_outside_steps("save_values");
  std::vector<Variable> handles;
  for (const auto& [key, variable] : variables) handles.push_back(variable);
  const std::vector<VariableRecord> state = whole_state(handles, {.has_slots = false});
  std::map<std::string, at::Tensor> values;
  for (const auto& [key, variable] : variables) {
    const at::Tensor& value = state[values.size()].values[0].tensor;
    values.emplace(key, value.detach().cpu().resolve_conj().resolve_neg().contiguous());
  }
  const VariableHome::WriteFile write = [&](const VariableHome::FileTurn& turn) {
    write_saved_file(path, values, turn);
  };
  // All have the same one, but for plain variables of this process.
  std::shared_ptr<const VariableHome> home;
  for (const Variable& each : handles) {
    if (home == nullptr || each.impl()->home()->is_of_one_strategy()) home = each.impl()->home();
  }
  home == nullptr ? write({}) : home->write_file(write);
}

class SavedValues::Impl {
 public:
  explicit Impl(const std::string& path) : file_(path) {}

  const variable::SavedTensors& tensors() const { return file_.tensors(); }
  const std::string& path() const { return file_.path(); }

  at::Tensor value(const std::string& key) const {
    const variable::SavedTensor& saved = file_.find(key);
    const at::Tensor value = variable::memory_for(saved, key, path());
    file_.read(saved, 0, {static_cast<std::byte*>(value.data_ptr()), value.nbytes()});
    COHORT_CHECK(!saved.checksum || *saved.checksum == crc32c(bytes_of(value)),
                 ErrorCode::data_loss, "[variable.saved_values] expected the bytes of '", key,
                 "' in file '", path(), "' that were saved, got others; the file is damaged");
    return variable::tensor_of_memory(saved, value);
  }

 private:
  const variable::SafetensorsFile file_;
};

SavedValues::SavedValues(const std::string& path) : impl_(std::make_shared<const Impl>(path)) {}

std::vector<std::string> SavedValues::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, tensor] : impl_->tensors()) keys.push_back(key);
  return keys;
}

at::Tensor SavedValues::value(const std::string& key) const { return impl_->value(key); }

void SavedValues::restore(const std::string& key, const Variable& variable) const {
  restore(std::map<std::string, Variable>{std::pair(key, variable)});
}

void SavedValues::restore(const std::map<std::string, Variable>& variables) const {
  check_outside_steps("restore_values");
  std::vector<VariableWrite> writes;
  std::vector<Variable> newer;
  for (const auto& [key, variable] : variables) {
    if (variable.impl()->home()->keeps_newer_values()) {
      newer.push_back(variable);
    } else {
      writes.push_back({variable, internal::Effect::Kind::assign, value(key)});
    }
  }
  if (!newer.empty()) {
    log_warn("[variable.restore_values] kept the values of ", names_of(newer),
             ", which the running job has, in place of the older ones of file '", impl_->path(),
             "'");
  }
  try {
    write_values(writes);
  } catch (const Error&) {
    throw current_error().during("restoring values of file '" + impl_->path() + "'");
  }
}

void restore_values(const std::string& path, const std::map<std::string, Variable>& variables) {
  SavedValues(path).restore(variables);
}

}  // namespace cohort
