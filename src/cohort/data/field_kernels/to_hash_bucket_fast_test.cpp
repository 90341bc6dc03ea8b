// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/field_function.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The buckets that tf.strings.to_hash_bucket_fast of TensorFlow 2.21 gives for INT64_MAX and 1000
// buckets: every branch of Fingerprint64 by length (0, 1-3, 4-7, 8-16, 17-32, 33-64, more).
struct RecordedBucket {
  std::string text;
  std::int64_t of_max;
  std::int64_t of_1000;
};

std::string ascii_text(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(32 + i % 90);
  return text;
}

std::vector<RecordedBucket> recorded_buckets() {
  const std::string fox = "the quick brown fox jumps over the lazy dog";
  return {{"", 1936946117179621456, 263},
          {"a", 3694432073954588132, 939},
          {"ab", 3066228220894225695, 502},
          {"abc", 2640714258260161385, 385},
          {"hello", 3786372426573024489, 296},
          {"Berlin", 8217100243811892171, 171},
          {"S\xe3o", 8333990142721090598, 598},
          {std::string("\0\1\xff", 3), 8189076853718899751, 558},
          {"1234567", 7403371938570208423, 423},
          {"12345678", 3430003927990384362, 362},
          {"123456789", 7102376421209267306, 306},
          {"0123456789abcdef", 6105018409752412263, 263},
          {"0123456789abcdefg", 2800675501336285771, 578},
          {std::string(31, 'x'), 5265493245336272416, 223},
          {std::string(32, 'x'), 3678204687145032710, 517},
          {std::string(33, 'x'), 3046993373088323128, 935},
          {std::string(63, 'y'), 8489596742954495578, 385},
          {std::string(64, 'y'), 4471793200125962424, 424},
          {std::string(65, 'y'), 4023130470993650269, 76},
          {fox + fox, 8368180385349759056, 863},
          {std::string(127, 'z'), 1448528312177052131, 938},
          {std::string(128, 'z'), 5180972258444977603, 603},
          {std::string(129, 'z'), 7040814056546431796, 796},
          {ascii_text(1000), 6935234086895426573, 573}};
}

std::vector<std::int64_t> buckets_of(const std::vector<std::string>& texts,
                                     std::int64_t num_buckets) {
  return scalars_of(Dataset::from_tensor_slices(StringTensor(texts))
                        .map(to_hash_bucket_fast({}, {.num_buckets = num_buckets})));
}

TEST(ToHashBucketFast, IsTensorFlows) {
  std::vector<std::string> texts;
  std::vector<std::int64_t> of_max;
  std::vector<std::int64_t> of_1000;
  for (const RecordedBucket& recorded : recorded_buckets()) {
    texts.push_back(recorded.text);
    of_max.push_back(recorded.of_max);
    of_1000.push_back(recorded.of_1000);
  }
  EXPECT_EQ(buckets_of(texts, INT64_MAX), of_max);
  EXPECT_EQ(buckets_of(texts, 1000), of_1000);
  EXPECT_THAT(buckets_of({"a", "b"}, 1), ElementsAre(0, 0));
}

TEST(ToHashBucketFast, TakesBatchesOfAnyShape) {
  const StringTensor pairs({2, 2}, {"a", "ab", "abc", ""});
  const Dataset hashed =
      Dataset::from_tensor_slices(pairs).batch(2).map(to_hash_bucket_fast({}, {.num_buckets = 7}));
  EXPECT_THAT(elements_of(hashed), ElementsAre("[[5, 0], [1, 6]]"));
  EXPECT_EQ(hashed.element_spec().to_string(), "int64[?, 2]");
}

TEST(ToHashBucketFast, WantsBuckets) {
  EXPECT_THAT(error_of([] { to_hash_bucket_fast("a", {}); }).message(),
              HasSubstr("[data.to_hash_bucket_fast] expected .num_buckets of at least 1, got 0"));
}

}  // namespace
}  // namespace cohort::data
