"""The metrics of torchmetrics, torcheval, scikit-learn and torch: whose mean over ranks is right, and why.

Names are those of the functions without the words that only tell tasks and implementations apart (see
``averageable.stem``); each entry ends with the class of torchmetrics that syncs its own state, if there is one.
"""

from __future__ import annotations

RATIO = "its denominator counts predictions or classes, not examples, and differs between ranks"
RANKING = "it compares every pair of examples, also those on different ranks"
ROOT = "the root of a mean is not the mean of roots"
EXP = "exp of a mean is not the mean of exps"
LOG = "the logarithm of a mean is not the mean of logarithms"
CORRELATION = "it is made of means, variances and a product that belong to all data"
TABLE = "it is computed from the whole confusion matrix"
CLASSES = "it averages over classes, and a class has another count on every rank"
TOTAL = "its denominator is a sum over the data, which differs between ranks"
BINS = "it bins all predictions before it compares"
ORDER = "a quantile of all data is not a mean of quantiles"
CLUSTERS = "it compares clusterings of all data"
DISTRIBUTION = "it compares distributions of all data"
EXTREME = "the extreme of all data is not a mean of extremes"
BASELINE = "it is relative to a baseline that is computed from all data"
BANDS = "it compares bands over all images before it takes a power or a product"
SUM = "a sum: the mean over ranks is only a share of it"

_EXAMPLES = "a mean over examples"
_LABELS = "a mean over labels and examples"
_VALUES = "a mean over values"
_IMAGES = "a mean over images"
_RECORDINGS = "a mean over recordings"
_TEXTS = "a mean over texts"
_QUERIES = "a mean over queries"
_LOSS = "a mean over examples (with class weights, over their weights), unless reduction says otherwise"

_CURVE = "a curve or a table, no single number: make it from gathered predictions or a synced state"
_WRAPPER = "what it wraps decides"
_AGGREGATOR = "what it is given decides; the object syncs by its own sum, maximum or concatenation"
_DISTANCES = "a matrix of pairs, no metric"
_TOOL = "a tool, no metric"

NOT_AVERAGEABLE: dict[str, tuple[str, str]] = {
    # classification
    "f1": (RATIO, "F1Score"),
    "acc_and_f1": (RATIO, "F1Score"),
    "fbeta": (RATIO, "FBetaScore"),
    "precision": (RATIO, "Precision"),
    "recall": (RATIO, "Recall"),
    "precision_recall_fscore_support": (RATIO, "StatScores"),
    "precision_recall": (RATIO, "PrecisionRecallCurve"),
    "specificity": (RATIO, "Specificity"),
    "sensitivity": (RATIO, "Recall"),
    "negative_predictive_value": (RATIO, "NegativePredictiveValue"),
    "jaccard": (RATIO, "JaccardIndex"),
    "jaccard_index": (RATIO, "JaccardIndex"),
    "critical_success_index": (RATIO, "CriticalSuccessIndex"),
    "mean_iou": (RATIO, "MeanIoU"),
    "dice": (RATIO, "DiceScore"),
    "class_likelihood_ratios": (RATIO, "StatScores"),
    "fairness": (RATIO, "BinaryFairness"),
    "demographic_parity": (RATIO, "BinaryFairness"),
    "equal_opportunity": (RATIO, "BinaryFairness"),
    "group_stat_rates": (RATIO, "BinaryGroupStatRates"),
    "groups_stat_rates": (RATIO, "BinaryGroupStatRates"),
    "balanced_accuracy": (CLASSES, "Accuracy"),
    "roc_auc": (RANKING, "AUROC"),
    "auroc": (RANKING, "AUROC"),
    "auc": (RANKING, "AUROC"),
    "log_auc": (RANKING, "LogAUC"),
    "auprc": (RANKING, "AveragePrecision"),
    "average_precision": (RANKING, "AveragePrecision"),
    "recall_at_fixed_precision": (RANKING, "RecallAtFixedPrecision"),
    "precision_at_fixed_recall": (RANKING, "PrecisionAtFixedRecall"),
    "sensitivity_at_specificity": (RANKING, "SensitivityAtSpecificity"),
    "specificity_at_sensitivity": (RANKING, "SpecificityAtSensitivity"),
    "retrieval_recall_at_fixed_precision": (RANKING, "RetrievalRecallAtFixedPrecision"),
    "eer": (RANKING, "EER"),
    "concordance_index": (RANKING, ""),
    "matthews_corrcoef": (TABLE, "MatthewsCorrCoef"),
    "cohen_kappa": (TABLE, "CohenKappa"),
    "fleiss_kappa": (TABLE, "FleissKappa"),
    "cramers_v": (TABLE, "CramersV"),
    "pearsons_contingency_coefficient": (TABLE, "PearsonsContingencyCoefficient"),
    "theils_u": (TABLE, "TheilsU"),
    "tschuprows_t": (TABLE, "TschuprowsT"),
    "calibration_error": (BINS, "CalibrationError"),
    "normalized_entropy": (TOTAL, ""),
    "weighted_calibration": (TOTAL, ""),
    "throughput": (TOTAL, ""),
    "d2_brier": (BASELINE, ""),
    "d2_log": (BASELINE, ""),
    # detection and segmentation
    "mean_average_precision": (RANKING, "MeanAveragePrecision"),
    "panoptic_quality": (RATIO, "PanopticQuality"),
    "modified_panoptic_quality": (RATIO, "ModifiedPanopticQuality"),
    "intersection_over_union": (TOTAL, "IntersectionOverUnion"),
    "complete_intersection_over_union": (TOTAL, "CompleteIntersectionOverUnion"),
    "distance_intersection_over_union": (TOTAL, "DistanceIntersectionOverUnion"),
    "generalized_intersection_over_union": (TOTAL, "GeneralizedIntersectionOverUnion"),
    # regression
    "pearson_corrcoef": (CORRELATION, "PearsonCorrCoef"),
    "spearman_corrcoef": (RANKING, "SpearmanCorrCoef"),
    "kendall_rank_corrcoef": (RANKING, "KendallRankCorrCoef"),
    "concordance_corrcoef": (CORRELATION, "ConcordanceCorrCoef"),
    "pearsonr": (CORRELATION, "PearsonCorrCoef"),
    "spearmanr": (RANKING, "SpearmanCorrCoef"),
    "kendalltau": (RANKING, "KendallRankCorrCoef"),
    "corrcoef": (CORRELATION, "PearsonCorrCoef"),
    "r2": (CORRELATION, "R2Score"),
    "explained_variance": (CORRELATION, "ExplainedVariance"),
    "d2_absolute_error": (BASELINE, ""),
    "d2_pinball": (BASELINE, ""),
    "d2_tweedie": (BASELINE, ""),
    "root_mean_squared_error": (ROOT, "MeanSquaredError"),
    "root_mean_squared_log_error": (ROOT, "MeanSquaredLogError"),
    "normalized_root_mean_squared_error": (ROOT, "NormalizedRootMeanSquaredError"),
    "minkowski_distance": (ROOT, "MinkowskiDistance"),
    "relative_squared_error": (TOTAL, "RelativeSquaredError"),
    "weighted_mean_absolute_percentage_error": (TOTAL, "WeightedMeanAbsolutePercentageError"),
    "median_absolute_error": (ORDER, ""),
    "max_error": (EXTREME, ""),
    # images
    "peak_signal_noise_ratio": (LOG, "PeakSignalNoiseRatio"),
    "peak_signal_noise_ratio_with_blocked_effect": (LOG, "PeakSignalNoiseRatioWithBlockedEffect"),
    "relative_average_spectral_error": (ROOT, "RelativeAverageSpectralError"),
    "spectral_distortion_index": (BANDS, "SpectralDistortionIndex"),
    "spatial_distortion_index": (BANDS, "SpatialDistortionIndex"),
    "quality_with_no_reference": (BANDS, "QualityWithNoReference"),
    "total_variation": (SUM, "TotalVariation"),
    "frechet_inception_distance": (DISTRIBUTION, "FrechetInceptionDistance"),
    "frechet_audio_distance": (DISTRIBUTION, ""),
    "kernel_inception_distance": (DISTRIBUTION, "KernelInceptionDistance"),
    "memorization_informed_frechet_inception_distance": (DISTRIBUTION, "MemorizationInformedFrechetInceptionDistance"),
    "inception": (DISTRIBUTION, "InceptionScore"),
    "perceptual_path_length": (ORDER, "PerceptualPathLength"),
    # text
    "perplexity": (EXP, "Perplexity"),
    "bleu": (TOTAL, "BLEUScore"),
    "sacre_bleu": (TOTAL, "SacreBLEUScore"),
    "chrf": (TOTAL, "CHRFScore"),
    "translation_edit_rate": (TOTAL, "TranslationEditRate"),
    "word_error_rate": (TOTAL, "WordErrorRate"),
    "char_error_rate": (TOTAL, "CharErrorRate"),
    "match_error_rate": (TOTAL, "MatchErrorRate"),
    "word_info_lost": (TOTAL, "WordInfoLost"),
    "word_information_lost": (TOTAL, "WordInfoLost"),
    "word_info_preserved": (TOTAL, "WordInfoPreserved"),
    "word_information_preserved": (TOTAL, "WordInfoPreserved"),
    # clustering
    "mutual_info": (CLUSTERS, "MutualInfoScore"),
    "normalized_mutual_info": (CLUSTERS, "NormalizedMutualInfoScore"),
    "adjusted_mutual_info": (CLUSTERS, "AdjustedMutualInfoScore"),
    "adjusted_rand": (CLUSTERS, "AdjustedRandScore"),
    "rand": (CLUSTERS, "RandScore"),
    "homogeneity": (CLUSTERS, "HomogeneityScore"),
    "completeness": (CLUSTERS, "CompletenessScore"),
    "v_measure": (CLUSTERS, "VMeasureScore"),
    "homogeneity_completeness_v_measure": (CLUSTERS, "VMeasureScore"),
    "fowlkes_mallows": (CLUSTERS, "FowlkesMallowsIndex"),
    "fowlkes_mallows_index": (CLUSTERS, "FowlkesMallowsIndex"),
    "cluster_accuracy": (CLUSTERS, "ClusterAccuracy"),
    "consensus": (CLUSTERS, ""),
    "dunn_index": (CLUSTERS, "DunnIndex"),
    "silhouette": (CLUSTERS, ""),
    "calinski_harabasz": (CLUSTERS, "CalinskiHarabaszScore"),
    "davies_bouldin": (CLUSTERS, "DaviesBouldinScore"),
}

AVERAGEABLE: dict[str, str] = {
    **dict.fromkeys(("accuracy", "top_k_accuracy", "topk_multilabel_accuracy"), "a mean of hits over examples"),
    "zero_one": "a mean of misses over examples",
    **dict.fromkeys(("hamming_distance", "hamming"), _LABELS),
    **dict.fromkeys(("exact_match", "hinge", "brier", "click_through_rate", "cosine_similarity"), _EXAMPLES),
    "log": "log loss: a mean over examples",
    **dict.fromkeys(("kl_divergence", "jensen_shannon_divergence", "continuous_ranked_probability"), _EXAMPLES),
    **dict.fromkeys(("coverage_error", "ranking", "ranking_average_precision"), _EXAMPLES),
    **dict.fromkeys(("label_ranking", "label_ranking_average_precision"), _EXAMPLES),
    **dict.fromkeys(("hit_rate", "reciprocal_rank", "ndcg", "dcg"), _QUERIES),
    **dict.fromkeys(("mean_absolute_error", "mean_squared_log_error", "mean_absolute_percentage_error"), _VALUES),
    "mean_squared_error": "a mean over values, unless squared=False takes its root",
    **dict.fromkeys(("symmetric_mean_absolute_percentage_error", "log_cosh_error", "tweedie_deviance"), _VALUES),
    **dict.fromkeys(("mean_gamma_deviance", "mean_poisson_deviance", "mean_tweedie_deviance", "mean_pinball"), _VALUES),
    **dict.fromkeys(("mean", "nan_mean"), "a mean, weighted by what it was given"),
    # images and video
    **dict.fromkeys(("structural_similarity_index_measure", "universal_image_quality_index"), _IMAGES),
    **dict.fromkeys(("multi_scale_structural_similarity_index_measure", "visual_information_fidelity"), _IMAGES),
    **dict.fromkeys(("learned_perceptual_image_patch_similarity", "spatial_correlation_coefficient"), _IMAGES),
    **dict.fromkeys(("deep_image_structure_and_texture_similarity", "spectral_angle_mapper", "arniqa"), _IMAGES),
    "error_relative_global_dimensionless_synthesis": _IMAGES,
    "root_mean_squared_error_using_sliding_window": _IMAGES,
    **dict.fromkeys(("clip", "clip_image_quality_assessment"), _IMAGES),
    **dict.fromkeys(("generalized_dice", "hausdorff_distance", "procrustes_disparity"), _EXAMPLES),
    "lip_vertex_error": "a mean over frames",
    "video_multi_method_assessment_fusion": "a mean over frames",
    # audio
    **dict.fromkeys(("scale_invariant_signal_distortion_ratio", "signal_noise_ratio"), _RECORDINGS),
    **dict.fromkeys(("scale_invariant_signal_noise_ratio", "signal_distortion_ratio"), _RECORDINGS),
    "complex_scale_invariant_signal_noise_ratio": _RECORDINGS,
    "source_aggregated_signal_distortion_ratio": _RECORDINGS,
    **dict.fromkeys(("permutation_invariant_training", "perceptual_evaluation_speech_quality"), _RECORDINGS),
    **dict.fromkeys(("short_time_objective_intelligibility", "non_intrusive_speech_quality_assessment"), _RECORDINGS),
    "speech_reverberation_modulation_energy_ratio": _RECORDINGS,
    "deep_noise_suppression_mean_opinion": _RECORDINGS,
    # text and retrieval
    **dict.fromkeys(("rouge", "bert", "infolm", "squad", "edit_distance", "extended_edit_distance"), _TEXTS),
    **dict.fromkeys(
        (
            "retrieval_auroc",
            "retrieval_average_precision",
            "retrieval_fall_out",
            "retrieval_hit_rate",
            "retrieval_map",
            "retrieval_mrr",
            "retrieval_ndcg",
            "retrieval_normalized_dcg",
            "retrieval_precision",
            "retrieval_r_precision",
            "retrieval_recall",
            "retrieval_reciprocal_rank",
        ),
        _QUERIES,
    ),
    # losses of torch
    **dict.fromkeys(("cross_entropy", "linear_cross_entropy", "nll", "bce", "bce_with_logits", "l1", "mse"), _LOSS),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits", "huber", "smooth_l1"), _LOSS),
    **dict.fromkeys(("kl_div", "ctc", "gaussian_nll", "poisson_nll", "cosine_embedding", "hinge_embedding"), _LOSS),
    **dict.fromkeys(("margin_ranking", "multi_margin", "multilabel_margin", "multilabel_soft_margin"), _LOSS),
    **dict.fromkeys(("soft_margin", "triplet_margin", "triplet_margin_with_distance"), _LOSS),
    "adaptive_log_softmax_with": _LOSS,
}

# Public names that are no metric of one number.
OTHER: dict[str, str] = {
    **dict.fromkeys(("roc", "det", "retrieval_precision_recall"), _CURVE),
    **dict.fromkeys(("confusion_matrix", "multilabel_confusion_matrix", "pair_confusion_matrix"), _CURVE),
    **dict.fromkeys(("confusion_matrix_at_thresholds", "metric_at_thresholds", "classification_report"), _CURVE),
    **dict.fromkeys(("stat_scores", "silhouette_samples", "image_gradients", "frequency_at_k"), _CURVE),
    **dict.fromkeys(("cramers_v_matrix", "pearsons_contingency_coefficient_matrix"), _CURVE),
    **dict.fromkeys(("theils_u_matrix", "tschuprows_t_matrix", "num_collisions"), _CURVE),
    **dict.fromkeys(("metric", "metric_collection", "metric_tracker", "bootstrapper", "min_max_metric"), _WRAPPER),
    **dict.fromkeys(("classwise_wrapper", "multioutput_wrapper", "multitask_wrapper", "running"), _WRAPPER),
    **dict.fromkeys(("feature_share", "lambda_input_transformer", "metric_input_transformer"), _WRAPPER),
    **dict.fromkeys(("binary_target_transformer", "target_transformer"), _WRAPPER),
    **dict.fromkeys(("base_aggregator", "cat_metric", "max_metric", "min_metric", "sum_metric"), _AGGREGATOR),
    **dict.fromkeys(("mean_metric", "running_mean", "running_sum", "cat", "max", "min", "sum"), _AGGREGATOR),
    **dict.fromkeys(("pairwise_cosine_similarity", "pairwise_euclidean_distance"), _DISTANCES),
    **dict.fromkeys(("pairwise_linear_similarity", "pairwise_manhattan_distance"), _DISTANCES),
    **dict.fromkeys(("pairwise_minkowski_distance", "pairwise_distances", "pairwise_kernels"), _DISTANCES),
    **dict.fromkeys(("pairwise_distances_argmin", "pairwise_distances_argmin_min"), _DISTANCES),
    **dict.fromkeys(("pairwise_distances_chunked", "euclidean_distances", "nan_euclidean_distances"), _DISTANCES),
    **dict.fromkeys(("make_scorer", "check_scoring", "get_scorer", "get_scorer_names", "cluster"), _TOOL),
    **dict.fromkeys(("distance_metric", "functional", "pit_permutate"), _TOOL),
    **dict.fromkeys(("confusion_matrix_display", "det_curve_display", "precision_recall_display"), _TOOL),
    **dict.fromkeys(("prediction_error_display", "roc_curve_display"), _TOOL),
}
