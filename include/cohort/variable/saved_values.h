// SPDX-License-Identifier: Apache-2.0
// Values of variables in one file, which any number of replicas can read again.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Writes the value of each variable under its key, as Variable::read() gives it in cross-replica
// context, into one safetensors file. If there are several workers, all make the call, the first
// one writes the file, and all throw its errors. If a worker is lost meanwhile, those that are left
// throw that error: call it again after rebuild(), or, if rebuild() has failed, on each worker. If
// all others have ended, the first worker goes on alone with a warning.
// The file appears whole or not at all: an old one of this name stays until then.
// Throws failed_precondition in a replica context; invalid_argument for a value that safetensors
// cannot hold; the errors of the file system.
COHORT_API void save_values(const std::string& path,
                            const std::map<std::string, Variable>& variables);

// An open file of saved values. Variables can be restored when they exist: also after the file was
// opened (tf.train.Checkpoint's restore before creation). A shared handle. Thread-safe.
class COHORT_API SavedValues {
 public:
  // Throws not_found if there is no such file; data_loss if it is not a safetensors file.
  explicit SavedValues(const std::string& path);
  std::vector<std::string> keys() const;
  // Throws not_found, with the list of keys, for another key; data_loss if save_values() has
  // written the file and the bytes of the value have changed since.
  at::Tensor value(const std::string& key) const;
  // Assigns the value, as Variable::assign() does in cross-replica context: each component of a
  // variable whose components are summed gets its share. Throws invalid_argument if dtype or shape
  // is not the variable's, and then assigns nothing. In a worker that has come back to a training,
  // before its first run(), variables keep the values of the others, with a warning.
  void restore(const std::string& key, const Variable& variable) const;
  void restore(const std::map<std::string, Variable>& variables) const;  // all or none

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

// SavedValues(path).restore(variables).
COHORT_API void restore_values(const std::string& path,
                               const std::map<std::string, Variable>& variables);

}  // namespace cohort
