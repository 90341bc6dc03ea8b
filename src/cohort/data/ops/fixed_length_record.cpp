// SPDX-License-Identifier: Apache-2.0
// fixed_length_record: chunks of equal length from files. Reads uncompressed files by number.
#include "cohort/data/files/chunk_scanner.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/file_rows.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct FixedLengthAttributes {
  static constexpr std::string_view kOp = "fixed_length_record";
  FileList files = {};
  FixedLengthOptions options = {};
  static void describe(auto& visit, auto& all) {
    describe_files(visit, all);
    visit("record_bytes", all.options.record_bytes, kPositive);
    visit("header_bytes", all.options.header_bytes);
    visit("footer_bytes", all.options.footer_bytes);
  }
};

class FixedLengthNode final : public FileReaderOp<FixedLengthNode, FixedLengthAttributes> {
 public:
  FixedLengthNode(std::vector<NodePtr> inputs, FixedLengthAttributes given)
      : FileReaderOp(std::move(inputs), std::move(given)) {
    const FixedLengthOptions& options = this->given().options;
    COHORT_CHECK(options.header_bytes >= 0 && options.footer_bytes >= 0,
                 ErrorCode::invalid_argument,
                 "[data.fixed_length_record] expected header_bytes and footer_bytes of at least 0, "
                 "got ",
                 options.header_bytes, " and ", options.footer_bytes);
  }

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    return std::make_unique<ChunkScanner>(open_reader(path), layout(), path, op());
  }

 protected:
  bool may_have_rows() const override { return true; }
  bool find_rows(RowFile& file, OpenedFiles*) const override {
    file.first = layout().header_bytes;
    file.row_bytes = layout().chunk_bytes;
    file.count = layout().count(file.file_bytes, file.path, op());
    return true;
  }

 private:
  ChunkLayout layout() const {
    const FixedLengthOptions& options = given().options;
    return {.header_bytes = static_cast<std::uint64_t>(options.header_bytes),
            .chunk_bytes = static_cast<std::uint64_t>(options.record_bytes),
            .footer_bytes = static_cast<std::uint64_t>(options.footer_bytes)};
  }
};

}  // namespace

NodePtr make_fixed_length_record(SerializedOp op) { return FixedLengthNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::fixed_length_record(const Dataset& files, FixedLengthOptions options) {
  return data::FixedLengthNode::of(files, options);
}

Dataset Dataset::fixed_length_record(StringTensor files, FixedLengthOptions options) {
  return data::FixedLengthNode::of(files, options);
}

}  // namespace cohort
