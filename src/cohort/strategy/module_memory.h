// SPDX-License-Identifier: Apache-2.0
// Compares the tensors of the modules of one factory, and finds those that have the same memory. A
// factory of replicate() may use a tensor that it has captured in each module that it makes, and
// set_data() gives a tensor any memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/strategy/replicated.h"

namespace cohort::internal {

// `copies`: the tensors of each replica's new module. Gives them memory of their own where they
// have that of another replica; those of one module that share memory still do. Throws, naming the
// tensor: invalid_argument if one is itself another replica's or a variable's, already_exists if
// one has the memory of a variable. Throws invalid_argument, too, if the modules differ in names,
// dtypes, shapes or in what is trained.
void make_alike(const std::vector<std::vector<NamedTensor>>& copies);

// `copies`: of one module. Throws failed_precondition, naming the variable, if two replicas have
// got one memory for their tensors; of parameters that all replicas share, if they have not.
void check_memory_of_replicas(const std::vector<std::shared_ptr<ModuleUse>>& copies,
                              bool shares_parameters);
// The same for the components of a variable.
void check_memory_of_components(const std::string& variable,
                                const std::vector<at::Tensor>& tensors);

// Whether no tensor of the module has got other memory since note_storages().
bool has_known_storages(const ModuleUse& module);
void note_storages(ModuleUse& module);

}  // namespace cohort::internal
