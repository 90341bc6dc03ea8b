// SPDX-License-Identifier: Apache-2.0
// tf_record: the records of TFRecord files. Reads them by number if every file has an index.
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/file_rows.h"
#include "cohort/data/files/record_scanner.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct TfRecordAttributes {
  static constexpr std::string_view kOp = "tf_record";
  FileList files = {};
  FileOptions options = {};
  static void describe(auto& visit, auto& all) { describe_files(visit, all); }
};

class RecordRows final : public FileRows {
 public:
  using FileRows::FileRows;

 protected:
  std::string_view decode(std::string_view bytes, std::uint64_t offset,
                          const std::string& path) const override {
    constexpr std::size_t kAround = kRecordHeaderBytes + kRecordFooterBytes;
    std::uint64_t length = 0;
    if (!decode_record_header(bytes, length) || bytes.size() != length + kAround) {
      fail_at_record("corrupted", offset, path, op());
    }
    if (!is_intact(bytes.substr(kRecordHeaderBytes))) {
      fail_at_record("corrupted", offset + kRecordHeaderBytes, path, op());
    }
    return bytes.substr(kRecordHeaderBytes, length);
  }
};

class TfRecordNode final : public FileReaderOp<TfRecordNode, TfRecordAttributes> {
 public:
  using FileReaderOp::FileReaderOp;

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    return std::make_unique<RecordScanner>(open_reader(path), path, op());
  }

 protected:
  bool may_have_rows() const override { return true; }
  bool find_rows(RowFile& file, OpenedFiles* opened) const override {
    std::optional<RecordIndex> index = load_record_index(index_path(file.path), file.file_bytes);
    if (!index) return false;
    if (opened != nullptr) opened->note(index_path(file.name), index_path(file.path), op());
    file.count = index->offsets.size();
    file.offsets = std::move(index->offsets);
    return true;
  }
  std::shared_ptr<const FileRows> rows_of(std::vector<RowFile> files,
                                          std::shared_ptr<OpenedFiles> opened) const override {
    return std::make_shared<RecordRows>(std::move(files), op(), std::move(opened));
  }
};

}  // namespace

NodePtr make_tf_record(SerializedOp op) { return TfRecordNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::tf_record(const Dataset& files, FileOptions options) {
  return data::TfRecordNode::of(files, options);
}

Dataset Dataset::tf_record(StringTensor files, FileOptions options) {
  return data::TfRecordNode::of(files, options);
}

}  // namespace cohort
