// SPDX-License-Identifier: Apache-2.0
// Checkpoints and safetensors files as JSON: {name: [dtype, sizes, bytes in hexadecimal]}.
#pragma once

#include <string>

#include "tests/interop/json_form.h"

namespace cohort::interop {

// Saves a checkpoint of variables with these names and values in folder `path`, with the slots of
// an optimizer of those of float32.
void write_checkpoint(const std::string& path, const Json& tensors);
// Restores `path`, a folder or a file of Python's safetensors, into variables "model/<name>" of
// these names, dtypes and sizes, and returns their values.
Json restored_values(const std::string& path, const Json& tensors);

}  // namespace cohort::interop
