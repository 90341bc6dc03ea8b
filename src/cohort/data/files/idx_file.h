// SPDX-License-Identifier: Apache-2.0
// The IDX format of MNIST: 0, 0, type, dimensions, sizes and values, all big-endian.
#pragma once

#include <memory>
#include <string>

#include "cohort/core/tensor_spec.h"
#include "cohort/data/files/file_stream.h"
#include "cohort/data/rows/row_store.h"

namespace cohort::data {

// The header of an open IDX file, checked against the file's length. A value type.
struct IdxFile {
  std::string path;
  TensorSpec all;  // static, at least one dimension
  std::size_t header_bytes = 0;
  std::shared_ptr<const RegularFile> content;

  // Throws not_found, or data_loss, naming the file, if the header is wrong.
  static IdxFile open(const std::string& path);
  // Reads the rows into memory. data_loss if the file was shortened since it was opened.
  Column column() const;
};

}  // namespace cohort::data
