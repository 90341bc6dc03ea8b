// SPDX-License-Identifier: Apache-2.0
// Random access to byte strings in files; reads only the requested ones.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/data/files/file_stream.h"
#include "cohort/data/opened_files.h"
#include "cohort/data/rows/row_store.h"

namespace cohort::data {

// The layout of one file: `count` rows of `row_bytes` each from offset `first` on, or rows that
// begin at `offsets`.
struct RowFile {
  std::string path;
  std::string name;  // as the pipeline names it
  std::uint64_t file_bytes = 0;
  std::uint64_t first = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> offsets = {};  // of each row; empty: rows of row_bytes

  std::uint64_t begin(std::uint64_t row) const {
    return offsets.empty() ? first + row * row_bytes : offsets[row];
  }
  std::uint64_t end(std::uint64_t row) const {
    if (offsets.empty()) return begin(row) + row_bytes;
    return row + 1 < count ? offsets[row + 1] : file_bytes;
  }
};

// Yields the bytes of the rows. Immutable except for open files. Thread-safe.
class FileRows : public RowStore {
 public:
  // `opened` belongs to the run that opens the files, and may be null.
  FileRows(std::vector<RowFile> files, std::string_view op, std::shared_ptr<OpenedFiles> opened);

  std::int64_t size() const final { return starts_.back(); }
  bool can_fail() const final { return true; }
  void element(std::int64_t row, Fields& fields) const final;
  void gather(std::span<const std::int64_t> rows, Fields& batch) const final;

 protected:
  // The value of a row, which is a part of its bytes. Throws data_loss if the bytes are damaged.
  virtual std::string_view decode(std::string_view bytes, std::uint64_t /*offset*/,
                                  const std::string& /*path*/) const {
    return bytes;
  }
  const std::string& op() const { return op_; }

 private:
  struct Run;  // consecutive rows of a file
  Run run_at(std::span<const std::int64_t> rows) const;
  void read(const Run& run, std::string& bytes) const;
  std::shared_ptr<const RegularFile> open(std::size_t file) const;

  std::vector<RowFile> files_;
  std::vector<std::int64_t> starts_;  // number of each file's first row; last, the total
  std::string op_;
  std::shared_ptr<OpenedFiles> opened_;  // shared with its run
  mutable Mutex mutex_;
  mutable std::map<std::size_t, std::shared_ptr<const RegularFile>> open_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::data
