# What the sanitizers run of each test program: a filter of GoogleTest. The address sanitizer runs all
# of a program that has no memory_of_ here, the thread sanitizer nothing of one without threads_of_.

# list(JOIN) for a filter: msa_filter(VARIABLE BEFORE PATTERNS...)
function(msa_filter variable before)
    list(JOIN ARGN ":" patterns)
    set(${variable} "${before}${patterns}" PARENT_SCOPE)
endfunction()

# Of the tests of selectors, these have one thread.
set(threads_of_test_core "-*EverySelector.*:Hisa*:Qsa*")
set(threads_of_test_analysis "*")
# A model that trains for long does what its first steps did.
set(threads_of_test_train "-*LearnsOneBatchByHeart")
set(memory_of_test_train "-*LearnsOneBatchByHeart")
set(threads_of_test_goldens "-*reference_*")
set(threads_of_test_parallel "*-*reference*")

# The thread sanitizer takes every operation of cpu through every case once, beside which reference,
# with one thread, is but what results are compared with. Groups of every size are in
# GroupSizes.RerunsChangeNoBit.
msa_filter(threads_of_test_backends "" *RerunsChangeNoBit* *ThreadsThatShareOut* *CanStart.*
    *IndexSelect.FollowsTheReference* *IndexLseTest.IndexSelectGives* *E4m3Attention.*
    "*EveryUnionSize.*-*reference_*")
# The address sanitizer sees reference where the others are compared with it, in every case of every
# operation, and leaves out what differs from other tests in values alone. Groups of every size are in
# GroupSizes.EmptyAndShortRows, too, both gradients in MatchesReference, and empty tiles in
# EmptyRows.InAPartOfATile and Everywhere.
msa_filter(memory_of_test_backends "-" */reference_f32 */reference_f32_* *RerunsChangeNoBit*
    *GroupSizes.MatchReference* *AllBlocksGiveTheDenseGradient* *EmptyRows.InWholeTiles*
    *TernaryOperands.*
    *IndexLists.*ing *IndexLists.*_equal *IndexLists.*_few *IndexLists.*_rare
    *GroupSizes.QueriesThatAreNotFinite* *GroupSizes.ForeignBlocks*
    *IsTheFiniteDifference* *KeysThatNobodySees* *HaveNoInfluence*)

# Many runs that have to give the same bytes, under kills, with other workers or in other parts: each
# does what the run of another test does, whose memory the address sanitizer sees. What is left of a
# run that was interrupted is taken up in FitResume, Resume and Shards, all policies are tried in
# Compare.HasARowForEverySelector*.
# Runs that are checked for what they say: another test makes each with other values, whose memory is
# seen. Intervals.OfAnalyze and FitResume.GoesOn* have the intervals of a run and of a fit,
# Advise.AnErrorAndABudget* the three targets, CapturesOf several files, BenchCaptured.FileAndIndexer* a
# file under msa-bench, PrecisionTest.MeasuresTheFormats* the formats. 80 s of a core.
msa_filter(memory_of_test_experiments "-" *ChangeNoBit *ChangeNoByte *TheBytesOfOne* *Kill*
    Resume.AfterInterrupts *.ResumesToTheSame* *DoNotMatter* CompareUnits.ChooseAsTheLayerDoes
    Compare.CostsAreThePhases* Compare.MoreBudget* Compare.EqualBudgets*
    Elements.ARoundedRunIsTheRunOfARoundedFile FarComparison.OfBlocks*
    *EveryBackend.SelectsTheSameOnOneRealFile* *PrecisionOnBackends.KernelsSelectBy*
    Bench.StructuredNeighbours* Bench.PacksFollow* Bench.EveryIndexElement*
    Advise.ThePageFits* Advise.TheOracleIsABound* Advise.EveryPoint*
    Advise.ALayerThatLooksEverywhere* Analyze.SampledQueriesAreRows* BenchCaptured.SampleOfTheRepository
    CapturesRun.MakeAnIndexerOfDsa* FitResume.ARefusal* Intervals.OfAGain* Intervals.OfAFit*
    PrecisionTest.FormatsThatMerge* PrecisionTest.FullPrecision*)
msa_filter(memory_of_test_pretrain "-" *ChangeNoBit *TheBytesOfOne *Kill* *ChangesNothing
    *EverySeedIsAsked* *LossOfANanoRunFalls)

# Side by side run the fit's jobs, the threads of selectors and measures, and the progress line.
msa_filter(threads_of_test_experiments "" Analyze.Threads* AnalyzeMetrics.* Compare.HasARow*
    Compare.Decode* FarAway.* FarComparison.OfTokens* Fit.JobsChangeNoBit Fit.ThreadsChangeNoBit
    FitTrainers.OfEvery* FitWorkers.TogetherHave* PrecisionTest.JobsChangeNoByte
    Reuse.JobsChangeNoByte Shards.JobsChangeNoByte Shards.CompareIs*)
