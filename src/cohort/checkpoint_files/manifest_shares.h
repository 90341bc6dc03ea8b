// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint that several processes write, each its share.
#pragma once

#include <string>

#include "cohort/checkpoint_files/manifest.h"

namespace cohort::checkpoint {

// Adds the tensors of a share to those of others. The rows of a table follow those that were added
// before. Throws data_loss, naming the writer, if the same tensor differs elsewhere.
void add_tensors_of_share(Manifest& whole, const Manifest& share, const std::string& writer);
// When all shares were added: puts the rows in order. Throws data_loss, naming a tensor, unless
// each is there once.
void order_rows(Manifest& whole);

}  // namespace cohort::checkpoint
