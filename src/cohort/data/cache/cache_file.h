// SPDX-License-Identifier: Apache-2.0
// The files of a cache (docs/formats/cache.md), which hold the elements of one complete pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/data/element.h"
#include "cohort/data/record_io.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

// Which dataset's elements a cache has; part of its file. A value type.
struct CachedDataset {
  std::string spec = {};          // ElementSpec::to_string(), or empty if it is unknown
  std::uint64_t fingerprint = 0;  // graph_fingerprint() of the ops before cache()
  std::int64_t cardinality = 0;   // of the same ops
};

// The complete file of a cache with this prefix, and the file that is written during the first
// pass.
std::string cache_path(const std::string& prefix);
std::string partial_cache_path(const std::string& prefix);

// The same two paths, after allowed_path().
struct CachePaths {
  std::string whole;
  std::string partial;
};

// Writes the elements of a pass. The complete file appears with finish(); without it, no file is
// left. Used from one thread at a time.
class CacheFileWriter {
 public:
  // Throws already_exists while another process or iterator writes these files.
  CacheFileWriter(CachePaths paths, const CachedDataset& dataset);
  ~CacheFileWriter();
  CacheFileWriter(const CacheFileWriter&) = delete;
  CacheFileWriter& operator=(const CacheFileWriter&) = delete;

  void add(const Fields& element);
  std::uint64_t count() const { return count_; }
  void finish();

 private:
  class FileLock;
  CachePaths paths_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<RecordWriter> writer_;
  std::uint64_t count_ = 0;
};

// Used from one thread at a time.
class CacheFileReader {
 public:
  // Returns nullptr if there is no such file. Throws failed_precondition if it has the elements of
  // another dataset.
  static std::unique_ptr<CacheFileReader> open(const std::string& path,
                                               const CachedDataset& dataset);

  // Returns false at the end. Throws data_loss for a damaged file.
  bool next(Fields& element);
  // The byte offset and the number of the next element.
  std::uint64_t offset() const { return reader_.offset(); }
  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t offset, std::uint64_t position);

 private:
  explicit CacheFileReader(const std::string& path) : path_(path), reader_(path) {}
  void check_header(const CachedDataset& dataset);
  void check_same(const CachedDataset& found, const CachedDataset& expected) const;
  std::string_view record();
  bool read(Fields& element);
  // In a handler of `error`: throws it, or what to do about damage.
  [[noreturn]] void rethrow(const Error& error) const;

  std::string path_;
  RecordReader reader_;
  std::uint64_t position_ = 0;
};

inline constexpr std::string_view kCacheName = "cache";

// The stage of the cache op `node` with these files: reads the one that an earlier pass has
// completed, or else writes it.
std::unique_ptr<Stage> start_file_cache(const Node& node, StageContext context, CachePaths paths);

}  // namespace cohort::data
