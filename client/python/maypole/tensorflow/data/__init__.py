"""tf.data's service for training jobs: input pipelines in a job of their own.

compute_service  what training uses: TfDataServiceConfig, tf_data_service, ...
compute_worker   the program of the job that computes
"""
